//! Mixtures of experts. The device chooses each row's experts, and finds their matrices in tables of addresses: the host
//! does not learn which they are, and a step's launches are the same whichever they are.

use super::kernels::{PRODUCTS, Tiling, Weights};
use super::launch::{Arg, NULL, at};
use super::linear::{Quantized, ROW_THREADS, Rows, Source, at_column, plain, shared_rows};
use super::ops::CudaOps;
use super::parts::Part;
use super::weights::{OnDevice, copied, key_of, refused};
use crate::base::{Error, Result};
use crate::device::Buffer;
use crate::kernels::{Arithmetic, Matrix};
use crate::ops::types::cpu_only;
use crate::ops::{Activation, Expert, Experts, Fold, Gate, Norm, OpSet, Projections, Shared, Weight};
use std::sync::Arc;

/// The most experts of a row: a lane of `bn_route` has one each.
const MOST_USED: usize = 32;
/// The most experts of a layer, of each of which `bn_route` has 8 bytes of shared memory.
const MOST_EXPERTS: usize = 4096;

/// The matrices of a mixture's experts.
pub(super) struct Tables {
    /// Gate and up, or both as one matrix.
    gate_up: Vec<Table>,
    down: Table,
    /// Addresses of codes and scales of each expert, table by table, those of `down` last.
    addresses: Buffer,
}

/// One matrix of each expert; all are alike.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Table {
    /// Index into `PRODUCTS`.
    product: usize,
    rows: usize,
    cols: usize,
    /// Columns of a row on the device.
    columns: usize,
    scale_step: i32,
    /// Where its addresses begin.
    start: usize,
}

/// The pairs of rows and their experts: each has a place, next to those of the same expert.
struct Pairs {
    /// Ints: of each row's pairs.
    places: Part,
    weights: Part,
    /// Ints: of each place.
    rows: Part,
    /// Three ints each.
    tiles: Part,
    tiling: Tiling,
    experts: usize,
}

/// The part of a mixture that devices lack, if it has one.
pub(super) fn lacking(experts: &Experts) -> Option<&'static str> {
    let Experts { router_norm, choice, experts: all, .. } = experts;
    let each = || all.iter().flat_map(|expert| [&expert.gate_up, &expert.down]);
    let any = |has: fn(&Projections) -> bool| each().any(has);
    let parts = [
        (router_norm.is_some(), "routers with a norm of their own"),
        (choice.groups.is_some(), "experts in groups"),
        (choice.used > MOST_USED || all.len() > MOST_EXPERTS, "so many experts"),
        (any(|weights| weights.bias.is_some()), "experts with biases"),
        (any(|weights| !weights.norms.is_empty()), "experts with norms"),
        (all.iter().any(|expert| folds(expert) != folds(&all[0])), "experts that are rotated differently"),
        (any(|weights| weights.matrices.len() > 2), "experts of many matrices"),
    ];
    parts.into_iter().find_map(|(has, part)| has.then_some(part))
}

/// The rotations of an expert's inputs: of gate and up, and of the last product.
fn folds(expert: &Expert) -> [Option<&Fold>; 2] {
    [&expert.gate_up, &expert.down].map(|weights| weights.fold.as_deref())
}

impl CudaOps {
    /// Copies a mixture to the device. `Unsupported` for a type of weights that experts do not have there.
    pub(super) fn hold_experts(&self, experts: &Experts) -> Result<()> {
        let Experts { router, bias, scales, experts: all, shared, .. } = experts;
        self.tables(experts)?;
        self.hold(Weight::Product(router))?;
        if let Some(Shared { expert, gate }) = shared {
            let mut all = [&expert.gate_up, &expert.down].into_iter().chain(gate);
            all.try_for_each(|weights| self.hold(Weight::Product(weights)))?;
        }
        let signs = all.first().into_iter().flat_map(folds).flatten().filter_map(|fold| fold.signs.as_ref());
        bias.iter().chain(scales).chain(signs).try_for_each(|vector| self.vector(vector).map(drop))
    }

    /// The tables of a mixture, which are made if they are not there yet.
    fn tables(&self, experts: &Experts) -> Result<Arc<Tables>> {
        let all = &experts.experts;
        let first = all.first().and_then(|expert| Some((expert, expert.gate_up.matrices.first()?)));
        let Some((first, key)) = first else { return Err(Error::internal("a mixture without experts")) };
        let key = key_of(key);
        if let Some(known) = self.held.lock().experts.get(&key) {
            return Ok(known.clone());
        }
        let (mut gate_up, mut addresses) = (Vec::new(), Vec::new());
        for n in 0..first.gate_up.matrices.len() {
            let of = all.iter().filter_map(|expert| expert.gate_up.matrices.get(n));
            gate_up.push(self.table(of, all.len(), &mut addresses)?);
        }
        let down = all.iter().filter_map(|expert| expert.down.matrices.first());
        let down = self.table(down, all.len(), &mut addresses)?;
        let addresses: Vec<u8> = addresses.iter().flat_map(|address: &u64| address.to_ne_bytes()).collect();
        let addresses = copied(&self.queue.opened, &self.queue.stream, &addresses, "tables of experts")?;
        let made = Arc::new(Tables { gate_up, down, addresses });
        self.held.lock().experts.insert(key, made.clone());
        Ok(made)
    }

    /// Copies one matrix of each expert, and appends their addresses.
    fn table<'a>(
        &self,
        matrices: impl Iterator<Item = &'a Matrix>,
        experts: usize,
        addresses: &mut Vec<u64>,
    ) -> Result<Table> {
        let (start, mut table) = (addresses.len(), None);
        for matrix in matrices {
            let held = self.matrix(matrix)?;
            let OnDevice { product, rows, columns, scale_step, .. } = *held;
            if self.kernels().products[product].experts.is_none() {
                return Err(refused(matrix.dtype, "experts of this type"));
            }
            let own = Table { product, rows, cols: matrix.cols, columns, scale_step, start };
            if *table.get_or_insert(own) != own {
                return Err(cpu_only("experts that differ from each other"));
            }
            addresses.extend([held.codes.address(0)?, held.scales.address(0)?]);
        }
        let all = addresses.len() - start == 2 * experts;
        table.filter(|_| all).ok_or_else(|| Error::internal("an expert without a matrix"))
    }

    /// The experts' outputs for the rows of `x`, after `norm` if given, added by their weights.
    pub(super) fn mixture(
        &self,
        x: &Part,
        norm: Option<&Norm>,
        experts: &Experts,
        activation: Activation,
    ) -> Result<Part> {
        let [rows, width] = x.dims;
        if self.queue.leaves() {
            return self.part(rows, width);
        }
        let (tables, used) = (self.tables(experts)?, experts.choice.used);
        let [first, down] = [&tables.gate_up[0], &tables.down];
        let between: usize = tables.gate_up.iter().map(|table| table.rows).sum();
        if [first.cols, 2 * down.cols, down.rows] != [width, between, width] {
            return Err(Error::internal("experts of another width"));
        }
        let [fold, down_fold] = experts.experts.first().map_or([None; 2], folds);
        let normed = self.floats(Rows { norm, ..Source::Rows(x).into() }, width)?;
        let x = normed.as_ref().unwrap_or(x);
        let pairs = self.pairs(x, experts, &tables)?;
        let gathered = self.part(rows * used, width)?;
        let folded = self.floats(Rows { fold, ..Source::Rows(x).into() }, width)?;
        let args = [folded.as_ref().unwrap_or(x).arg()?, pairs.rows.arg()?, gathered.arg()?, Arg::int(width)];
        let grid = shared_rows(rows * used, width, ROW_THREADS, 1);
        // SAFETY: each place has a row of x, and a row of `gathered`.
        unsafe { self.launch(&self.kernels().gather_rows, grid, ROW_THREADS, 0, &args)? };
        let gate_up = self.part(rows * used, between)?;
        self.expert_products(Source::Rows(&gathered).into(), &tables, &tables.gate_up, &pairs, &gate_up)?;
        drop((gathered, folded));
        let y = self.part(rows * used, width)?;
        let source = Source::Gated { gate_up: &gate_up, activation };
        self.expert_products(Rows { source, norm: None, fold: down_fold }, &tables, &[*down], &pairs, &y)?;
        drop(gate_up);
        let (shared, gate) = self.shared(x, experts, activation)?;
        self.mix(&y, &pairs, shared.as_ref(), gate.as_ref(), [rows, width])
    }

    /// The output of the expert that all rows pass through, and the logits of its weights.
    fn shared(
        &self,
        x: &Part,
        experts: &Experts,
        activation: Activation,
    ) -> Result<(Option<Part>, Option<Part>)> {
        let Some(Shared { expert, gate }) = &experts.shared else { return Ok((None, None)) };
        let gate_up = self.product(Source::Rows(x), None, &expert.gate_up)?;
        let own = self.product(Source::Gated { gate_up: &gate_up, activation }, None, &expert.down)?;
        let gate = gate.as_ref().map(|gate| self.product(Source::Rows(x), None, gate)).transpose()?;
        own.check("a shared expert", x.dims)?;
        gate.iter().try_for_each(|gate| gate.check("a shared expert's gate", [x.dims[0], 1]).map(drop))?;
        Ok((Some(own), gate))
    }

    /// Chooses the experts of each row of `x`, and brings those of one expert together.
    fn pairs(&self, x: &Part, experts: &Experts, tables: &Tables) -> Result<Pairs> {
        let Experts { router, choice, bias, scales, experts: all, .. } = experts;
        let (rows, count, used) = (x.dims[0], all.len(), choice.used);
        if used == 0 || used > count.min(MOST_USED) || count > MOST_EXPERTS {
            return Err(Error::internal(format!("{used} of {count} experts")));
        }
        if bias.iter().chain(scales).any(|vector| vector.len() != count) {
            return Err(Error::internal("a factor or a bias for each expert"));
        }
        let logits = self.product(Source::Rows(x), None, router)?;
        logits.check("a router's logits", [rows, count])?;
        let vector = |of: &Option<Arc<[f32]>>| match of {
            Some(of) => at(&self.vector(of)?.values),
            None => Ok(NULL),
        };
        let ints = |count: usize| self.bytes(count * size_of::<i32>());
        let (chosen, weights) = (ints(rows * used)?, self.part(rows, used)?);
        let mut args = vec![logits.arg()?, vector(bias)?, vector(scales)?, chosen.arg()?, weights.arg()?];
        args.extend([count, used].map(Arg::int));
        args.extend(
            [choice.gate == Gate::Logistic, choice.renormalize.is_some()].map(|yes| Arg::Int(yes.into())),
        );
        args.extend([choice.renormalize.unwrap_or(0.0), choice.scale].map(Arg::from));
        let kernels = self.kernels();
        // SAFETY: logits are `[rows, count]`, bias and scales `[count]`, chosen and weights `[rows, used]`.
        unsafe { self.launch(&kernels.route, [rows, 1, 1], 32, 8 * count, &args)? };
        let products = tables.gate_up.iter().chain([&tables.down]).map(|table| table.product);
        let tiling = Tiling::new(rows * used, count, products);
        let (places, of_places, tiles) = (ints(rows * used)?, ints(rows * used)?, ints(3 * tiling.slots)?);
        let mut args = vec![chosen.arg()?, places.arg()?, of_places.arg()?, tiles.arg()?];
        args.extend([rows * used, used, tiling.tile, tiling.slots].map(Arg::int));
        // SAFETY: chosen experts are below `count`; there are as many slots as the kernel wants.
        unsafe { self.launch(&kernels.group, [count, 1, 1], ROW_THREADS, 64, &args)? };
        Ok(Pairs { places, weights, rows: of_places, tiles, tiling, experts: count })
    }

    /// Multiplies the rows of all pairs with the matrices `all` of their experts, outputs side by side.
    fn expert_products(
        &self,
        source: Rows,
        tables: &Tables,
        all: &[Table],
        pairs: &Pairs,
        out: &Part,
    ) -> Result<()> {
        let mut column = 0;
        // One launch has one step of scales: of I2_S a matrix has one, of other ternary types each row.
        let key = |table: &Table| (table.product, table.columns, table.scale_step);
        for run in all.chunk_by(|a, b| key(a) == key(b)) {
            let Table { product, cols, columns, .. } = run[0];
            let rows = run.iter().map(|table| table.rows).sum::<usize>();
            let ints = |x: &Quantized| Ok::<_, Error>(vec![x.values.arg()?, x.scales.arg()?, x.sums.arg()?]);
            let to = at_column(out.address()?, column);
            match PRODUCTS[product].arithmetic {
                kind @ (Arithmetic::Ternary | Arithmetic::Int8) => {
                    let x = self.quantized(source, cols, columns, kind)?;
                    self.expert_product(ints(&x)?, tables, run, pairs, to, out.dims[1])?;
                }
                arithmetic => {
                    let own = self.floats(source, cols)?;
                    let x = own.as_ref().map_or_else(|| plain(source.source), Ok)?;
                    let each = match arithmetic {
                        Arithmetic::Blocks32 => Some(32),
                        Arithmetic::Blocks256 => Some(256),
                        _ => None,
                    };
                    let blocks = each.map(|each| self.blocks(x, each)).transpose()?;
                    let args = blocks.as_ref().map_or_else(|| Ok(vec![x.arg()?]), ints)?;
                    self.expert_product(args, tables, run, pairs, to, out.dims[1])?;
                }
            }
            column += rows;
        }
        Ok(())
    }

    /// One launch for one matrix of each expert, or two of the same type.
    fn expert_product(
        &self,
        x: Vec<Arg>,
        tables: &Tables,
        run: &[Table],
        pairs: &Pairs,
        to: Arg,
        stride: usize,
    ) -> Result<()> {
        let first = &run[0];
        let kernels = self.kernels().products[first.product].experts.as_ref();
        let kernels = kernels.ok_or_else(|| Error::internal("experts without a kernel"))?;
        let product = &PRODUCTS[first.product];
        let mut args = vec![to];
        args.extend(x);
        let addresses = tables.addresses.address(first.start * size_of::<u64>())?;
        args.extend([pairs.tiles.arg()?, addresses.into(), Arg::int(pairs.experts)]);
        args.extend((product.weights == Weights::Whole).then_some(Arg::Int(first.scale_step)));
        args.extend([Arg::int(first.columns), Arg::long(stride)]);
        args.extend([first.rows, run.get(1).map_or(0, |second| second.rows)].map(Arg::int));
        let rows: Vec<usize> = run.iter().map(|table| table.rows).collect();
        let launch = product.expert_launch(pairs.tiling, &rows);
        let function = &kernels[launch.gemv.unwrap_or(0)];
        // SAFETY: the tiles were made for these pairs, x and `to` have a row for each of them, and the tables have the
        // matrices of as many experts, all of this type and size.
        unsafe { self.launch(function, launch.grid, launch.threads, launch.shared, &args) }
    }

    /// The sum of each row's pairs, and of the shared expert.
    fn mix(
        &self,
        y: &Part,
        pairs: &Pairs,
        shared: Option<&Part>,
        gate: Option<&Part>,
        [rows, width]: [usize; 2],
    ) -> Result<Part> {
        let out = self.part(rows, width)?;
        let or_null = |part: Option<&Part>| part.map_or(Ok(NULL), Part::arg);
        let mut args =
            vec![y.arg()?, pairs.places.arg()?, pairs.weights.arg()?, or_null(shared)?, or_null(gate)?];
        args.extend([out.arg()?, Arg::int(pairs.weights.dims[1]), Arg::int(width)]);
        let grid = [rows, width.div_ceil(ROW_THREADS), 1];
        // SAFETY: y has a row of `width` for each pair; `shared` and `out` are `[rows, width]`, `gate` is `[rows, 1]`.
        unsafe { self.launch(&self.kernels().mix, grid, ROW_THREADS, 0, &args)? };
        Ok(out)
    }
}
