//! Norms, rotations, quantization of activations for the weights' type, the product and its bias.

use super::kernels::{Launch, PRODUCTS, SEGMENTS, Weights};
use super::launch::{Arg, NULL, at};
use super::ops::CudaOps;
use super::parts::Part;
use super::weights::{OnDevice, Vector};
use crate::base::{Error, Result};
use crate::kernels::Arithmetic;
use crate::kernels::gemm::blocks::MOST;
use crate::kernels::rows::hadamard;
use crate::ops::{Activation, Fold, Norm, Projections};

/// Maximum bytes of the parts of 16 tokens and 32 columns that products of halves take.
const PARTS_BYTES: usize = 2176;

/// Threads of a block that works on elements by themselves.
pub(super) const ROW_THREADS: usize = 256;

/// Threads of a block that keeps a row of `cols` columns: one for each 8 columns, so that all loads are under way at
/// once.
pub(super) fn row_threads(cols: usize) -> usize {
    cols.div_ceil(8).next_multiple_of(32).clamp(32, 1024)
}

/// Blocks of `threads` threads with `each` columns per thread for each of `rows` rows of `cols` columns.
pub(super) fn shared_rows(rows: usize, cols: usize, threads: usize, each: usize) -> [usize; 3] {
    [rows, cols.div_ceil(threads * each), 1]
}

/// Threads of a block that combines gate and up, with 4 columns each.
const GATE_THREADS: usize = 128;

/// Source of a product's input.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Rows(&'a Part),
    /// `x += y`, with `norm(y)` if there is a norm.
    Sum {
        x: &'a Part,
        y: &'a Part,
        norm: Option<&'a Norm>,
    },
    /// `[rows, 2 cols]`: gate, then up.
    Gated {
        gate_up: &'a Part,
        activation: Activation,
    },
}

/// The input rows of a product.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub source: Source<'a>,
    pub norm: Option<&'a Norm>,
    /// Rows are rotated after the norm.
    pub fold: Option<&'a Fold>,
}

impl<'a> From<Source<'a>> for Rows<'a> {
    fn from(source: Source<'a>) -> Self {
        Self { source, norm: None, fold: None }
    }
}

/// Destination of outputs: the columns of `part` from `column` on.
#[derive(Clone, Copy)]
pub(super) struct Outputs<'a> {
    pub part: &'a Part,
    pub column: usize,
    /// Added to all columns of `part`.
    pub bias: Option<&'a Vector>,
}

/// Address of the four-byte word `column` of an array at `address`.
pub(super) fn at_column(address: u64, column: usize) -> Arg {
    (address + (column * size_of::<f32>()) as u64).into()
}

/// Bytes of shared memory of a kernel that keeps a row of `stride` floats.
pub(super) fn row_shared(stride: usize) -> usize {
    4 * (stride.next_multiple_of(4) + 68)
}

/// Int8 activations.
pub(super) struct Quantized {
    pub values: Part,
    pub scales: Part,
    pub sums: Part,
}

/// The kernels' number for `activation`, and its parameters.
fn activation_args(activation: Activation) -> Result<[Arg; 3]> {
    let (number, [first, second]) = match activation {
        Activation::SwiGlu => (0, [0.0; 2]),
        Activation::Relu2 => (1, [0.0; 2]),
        Activation::GeGlu => (2, [0.0; 2]),
        Activation::ClampedSwiGlu { limit } => (3, [0.0, limit]),
        Activation::ScaledSwiGlu { by, output } => (4, [by, output]),
        Activation::SteepSwiGlu { alpha, limit } => (5, [alpha, limit]),
        other @ (Activation::Gelu | Activation::GeGluErf | Activation::GeluErf) => {
            return Err(Error::internal(format!("{other:?} on a device")));
        }
    };
    Ok([Arg::Int(number), first.into(), second.into()])
}

impl Source<'_> {
    fn rows(&self) -> usize {
        match self {
            Self::Rows(x) | Self::Sum { x, .. } => x.dims[0],
            Self::Gated { gate_up, .. } => gate_up.dims[0],
        }
    }

    fn check(&self, rows: usize, cols: usize) -> Result<()> {
        match self {
            Self::Rows(x) => x.check("a product's input", [rows, cols]).map(drop),
            Self::Sum { x, y, .. } => {
                x.check("a sum", [rows, cols])?;
                y.check("a sum", [rows, cols]).map(drop)
            }
            Self::Gated { gate_up, .. } => gate_up.check("gate and up", [rows, 2 * cols]).map(drop),
        }
    }
}

impl CudaOps {
    /// Returns the rows `rows` of `x`, in that order.
    pub(super) fn gather(&self, x: &Part, rows: &[u32]) -> Result<Part> {
        let [count, cols] = x.dims;
        if rows.iter().any(|row| *row as usize >= count) {
            return Err(Error::internal(format!("rows {rows:?} of {count}")));
        }
        let out = self.part(rows.len(), cols)?;
        let listed = self.inputs.lock().rows(&self.queue, rows)?;
        let args = [x.arg()?, listed.into(), out.arg()?, Arg::int(cols)];
        let grid = shared_rows(rows.len(), cols, ROW_THREADS, 1);
        // SAFETY: the rows are within x; out is `[rows, cols]`.
        unsafe { self.launch(&self.kernels().gather_rows, grid, ROW_THREADS, 0, &args)? };
        Ok(out)
    }

    /// Returns `[rows, sum of the matrices' rows]`.
    pub(super) fn product(&self, source: Source, norm: Option<&Norm>, weights: &Projections) -> Result<Part> {
        if self.queue.leaves() {
            return self.part(source.rows(), weights.matrices.iter().map(|m| m.rows).sum());
        }
        let held = weights.matrices.iter().map(|m| self.matrix(m)).collect::<Result<Vec<_>>>()?;
        let matrices: Vec<&OnDevice> = held.iter().map(|m| &**m).collect();
        let Some(cols) = weights.matrices.first().map(|m| m.cols) else {
            return Err(Error::internal("a product without matrices"));
        };
        if weights.matrices.iter().any(|m| m.cols != cols) {
            return Err(Error::internal("the weights of one product differ in width"));
        }
        let rows = source.rows();
        source.check(rows, cols)?;
        let width = weights.matrices.iter().map(|m| m.rows).sum();
        if weights.bias.as_ref().is_some_and(|bias| bias.len() != width) {
            return Err(Error::internal("the bias is not as wide as the product"));
        }
        let bias = weights.bias.as_ref().map(|bias| self.vector(bias)).transpose()?;
        let out = self.part(rows, width)?;
        let to = Outputs { part: &out, column: 0, bias: bias.as_deref() };
        let fold = weights.fold.as_deref();
        if weights.norms.is_empty() {
            self.products(Rows { source, norm, fold }, &matrices, cols, to)?;
        } else {
            if weights.norms.len() != matrices.len() {
                return Err(Error::internal("other norms than matrices"));
            }
            let x = self.floats(Rows { source, norm, fold: None }, cols)?;
            let x = x.as_ref().map_or_else(|| plain(source), Ok)?;
            let mut norms = weights.norms.iter();
            each(matrices.chunks(1), to, |matrix, to| {
                self.products(Rows { source: Source::Rows(x), norm: norms.next(), fold }, matrix, cols, to)
            })?;
        }
        Ok(out)
    }

    /// Multiplies with all of `matrices`, outputs side by side.
    fn products(&self, rows: Rows, matrices: &[&OnDevice], cols: usize, to: Outputs) -> Result<()> {
        let arithmetic = |m: &OnDevice| PRODUCTS[m.product].arithmetic;
        let (kind, stride) = (arithmetic(matrices[0]), matrices[0].columns);
        let whole = matches!(kind, Arithmetic::Ternary | Arithmetic::Int8);
        let launches = matrices.chunk_by(|a, b| a.product == b.product).flat_map(|run| run.chunks(MOST));
        if whole && matrices.iter().all(|m| arithmetic(m) == kind && m.columns == stride) {
            let x = self.quantized(rows, cols, stride, kind)?;
            return each(launches, to, |matrices, to| self.int8_product(&x, matrices, to));
        }
        // Rows are computed once, then quantized for each kind of matrix.
        let own = self.floats(rows, cols)?;
        let x = own.as_ref().map_or_else(|| plain(rows.source), Ok)?;
        let made = |of: Arithmetic, make: &dyn Fn() -> Result<Quantized>| {
            matrices.iter().any(|m| arithmetic(m) == of).then(make).transpose()
        };
        let short = made(Arithmetic::Blocks32, &|| self.blocks(x, 32))?;
        let long = made(Arithmetic::Blocks256, &|| self.blocks(x, 256))?;
        each(launches, to, |matrices, to| match (arithmetic(matrices[0]), &short, &long) {
            (Arithmetic::Float, ..) => self.float_product(x, matrices, to),
            (Arithmetic::Blocks32, Some(x), _) | (Arithmetic::Blocks256, _, Some(x)) => {
                self.int8_product(x, matrices, to)
            }
            (kind, ..) => {
                let x = self.quantized(Source::Rows(x).into(), cols, matrices[0].columns, kind)?;
                self.int8_product(&x, matrices, to)
            }
        })
    }

    /// The input in f32. `None` if the source already has it.
    pub(super) fn floats(&self, rows: Rows, cols: usize) -> Result<Option<Part>> {
        match rows {
            Rows { source: Source::Rows(_), norm: None, fold: None } => Ok(None),
            _ => self.row_floats(rows, cols).map(Some),
        }
    }

    /// The input in f32.
    pub(super) fn row_floats(&self, of: Rows, cols: usize) -> Result<Part> {
        let Rows { source, norm, fold } = of;
        let rows = source.rows();
        source.check(rows, cols)?;
        self.check_norm(norm, cols)?;
        let out = self.part(rows, cols)?;
        if self.queue.leaves() {
            return Ok(out);
        }
        let mut args = self.source_args(source, norm)?;
        args.extend([out.arg()?, Arg::int(cols)]);
        args.extend(self.fold_args(fold, cols)?);
        let kernels = self.kernels();
        let (grid, threads, shared) = ([rows, 1, 1], row_threads(cols), row_shared(cols));
        let (kernel, grid, threads, shared) = match (source, norm, fold) {
            // Elements by themselves.
            (Source::Gated { .. }, None, None) => {
                (&kernels.gated_norm, shared_rows(rows, cols, GATE_THREADS, 4), GATE_THREADS, 0)
            }
            (Source::Gated { .. }, ..) => (&kernels.gated_norm, grid, threads, shared),
            _ => (&kernels.add_norm, grid, threads, shared),
        };
        // SAFETY: all are of `rows` rows of `cols` columns, as checked.
        unsafe { self.launch(kernel, grid, threads, shared, &args)? };
        Ok(out)
    }

    /// The input in int8 with one scale per row, for weights of an arithmetic, which may want it rotated. Rows have
    /// `stride` columns, zeros after the first `cols`.
    pub(super) fn quantized(
        &self,
        of: Rows,
        cols: usize,
        stride: usize,
        arithmetic: Arithmetic,
    ) -> Result<Quantized> {
        let folded = of.fold.map(|_| self.row_floats(of, cols)).transpose()?;
        let Rows { source, norm, .. } = folded.as_ref().map_or(of, |x| Source::Rows(x).into());
        let rows = source.rows();
        self.check_norm(norm, cols)?;
        let (values, scales, sums) = (self.bytes(rows * stride)?, self.part(1, rows)?, self.part(1, rows)?);
        let mut args = self.source_args(source, norm)?;
        args.extend([values.arg()?, scales.arg()?, sums.arg()?]);
        let block = if arithmetic == Arithmetic::Int8 { hadamard::rotation(cols) } else { 1 };
        args.extend([cols, stride, block].map(Arg::int));
        args.push(hadamard::factor(block).into());
        let kernels = self.kernels();
        let kernel = match source {
            Source::Gated { .. } => &kernels.gated_norm_quantize,
            _ => &kernels.add_norm_quantize,
        };
        // SAFETY: as in `row_floats`; values are `[rows, stride]`, scales and sums `[rows]`.
        unsafe { self.launch(kernel, [rows, 1, 1], row_threads(stride), row_shared(stride), &args)? };
        Ok(Quantized { values, scales, sums })
    }

    /// Undoes the rotation of rows of an embedding in int8, and multiplies them with `scale`.
    pub(super) fn unrotate(&self, x: &Part, scale: f32) -> Result<()> {
        let ([rows, cols], block) = (x.dims, hadamard::rotation(x.dims[1]));
        self.check_row(cols)?;
        let args = [x.arg()?, Arg::int(block), hadamard::factor(block).into(), scale.into(), Arg::int(cols)];
        let (grid, kernel) = ([rows, 1, 1], &self.kernels().unrotate_rows);
        // SAFETY: x is `[rows, cols]`, and `block` divides `cols`.
        unsafe { self.launch(kernel, grid, row_threads(cols), row_shared(cols), &args) }
    }

    /// Undoes the rotation of folded rows of an embedding.
    pub(super) fn unfold(&self, x: &Part, fold: &Fold) -> Result<()> {
        let [rows, cols] = x.dims;
        if self.queue.leaves() {
            return Ok(());
        }
        let [signs, block, factor, ..] = self.fold_args(Some(fold), cols)?;
        let (grid, kernel) = ([rows, 1, 1], &self.kernels().unfold_rows);
        let args = [x.arg()?, signs, block, factor, Arg::int(cols)];
        // SAFETY: x is `[rows, cols]`, signs are `[cols]` or null, and the block divides `cols`.
        unsafe { self.launch(kernel, grid, row_threads(cols), row_shared(cols), &args) }
    }

    /// The arguments of a rotation of rows of `cols` columns: signs, block, factor, key heads and value heads.
    fn fold_args(&self, fold: Option<&Fold>, cols: usize) -> Result<[Arg; 5]> {
        let none = Arg::Int(0);
        let Some(fold) = fold else { return Ok([NULL, none, 0.0.into(), none, none]) };
        fold.check(cols)?;
        let signs = fold.signs.as_ref().map_or(Ok(NULL), |signs| at(&self.vector(signs)?.values))?;
        let heads = fold.heads.map_or([0; 2], |heads| [heads.key_heads, heads.value_heads]);
        let [key_heads, value_heads] = heads.map(Arg::int);
        Ok([signs, Arg::int(fold.block), hadamard::factor(fold.block).into(), key_heads, value_heads])
    }

    /// The first arguments of the kernels of `row_floats` and `quantized`.
    fn source_args(&self, source: Source, norm: Option<&Norm>) -> Result<Vec<Arg>> {
        let (weight, eps) = self.norm_args(norm)?;
        Ok(match source {
            Source::Rows(x) => vec![x.arg()?, NULL, NULL, 0.0.into(), weight, eps],
            Source::Sum { x, y, norm } => {
                let (y_weight, y_eps) = self.norm_args(norm)?;
                vec![x.arg()?, y.arg()?, y_weight, y_eps, weight, eps]
            }
            Source::Gated { gate_up, activation } => {
                let [kind, first, second] = activation_args(activation)?;
                vec![gate_up.arg()?, kind, first, second, weight, eps]
            }
        })
    }

    /// Refuses rows that do not fit the shared memory of a block. `Unsupported`.
    pub(super) fn check_row(&self, cols: usize) -> Result<()> {
        // In int8, a row is padded to a multiple of 128 columns.
        let (needed, most) = (row_shared(cols.next_multiple_of(128)), self.facts().shared_bytes);
        match needed <= most {
            true => Ok(()),
            false => Err(Error::unsupported(format!(
                "rows of {cols} columns take {needed} bytes of shared memory, and the device has {most} for a block"
            ))),
        }
    }

    /// Refuses a norm of another width.
    pub(super) fn check_norm(&self, norm: Option<&Norm>, cols: usize) -> Result<()> {
        match norm.is_none_or(|norm| norm.weight.len() == cols) {
            true => Ok(()),
            false => Err(Error::internal("the norm is not as wide as the rows")),
        }
    }

    /// A norm's weight and eps, or null and 0 without a norm.
    pub(super) fn norm_args(&self, norm: Option<&Norm>) -> Result<(Arg, Arg)> {
        let Some(norm) = norm else { return Ok((NULL, 0.0.into())) };
        Ok((at(&self.vector(&norm.weight)?.values)?, norm.eps.into()))
    }

    /// Quantizes `x` to int8 with one scale per `each` columns, 32 or 256.
    pub(super) fn blocks(&self, x: &Part, each: usize) -> Result<Quantized> {
        let ([rows, cols], kernels) = (x.dims, self.kernels());
        let blocks = rows * cols / each;
        // There is a sum for each 32 columns, in long blocks for each 16.
        let (kernel, sums) = match each {
            32 => (&kernels.quantize_blocks32, blocks),
            _ => (&kernels.quantize_blocks256, 16 * blocks),
        };
        let (values, scales, sums) = (self.bytes(rows * cols)?, self.part(1, blocks)?, self.bytes(2 * sums)?);
        let args = [x.arg()?, values.arg()?, scales.arg()?, sums.arg()?, Arg::long(blocks)];
        let grid = [blocks.div_ceil(ROW_THREADS / 32), 1, 1];
        // SAFETY: x and values have `blocks` blocks; there is one scale per block, and as many sums as the kernel
        // writes.
        unsafe { self.launch(kernel, grid, ROW_THREADS, 0, &args)? };
        Ok(Quantized { values, scales, sums })
    }

    fn int8_product(&self, x: &Quantized, matrices: &[&OnDevice], to: Outputs) -> Result<()> {
        let (tokens, args) = (to.part.dims[0], vec![x.values.arg()?, x.scales.arg()?, x.sums.arg()?]);
        self.run_product(self.launch_of(tokens, matrices), tokens, args, matrices, to)
    }

    pub(super) fn float_product(&self, x: &Part, matrices: &[&OnDevice], to: Outputs) -> Result<()> {
        let tokens = x.dims[0];
        let launch = self.launch_of(tokens, matrices);
        let split = self.kernels().products[matrices[0].product].split.as_ref().filter(|_| launch.split);
        let Some(split) = split else {
            return self.run_product(launch, tokens, vec![x.arg()?], matrices, to);
        };
        let cols = matrices[0].columns;
        let (tiles, chunks) = (tokens.div_ceil(16), cols.div_ceil(32));
        let parts = self.bytes(PARTS_BYTES * tiles * chunks)?;
        let args = [parts.arg()?, x.arg()?, Arg::int(tokens), Arg::int(cols)];
        // SAFETY: x is `[tokens, cols]`, and parts have room for each tile of 16 tokens and chunk of 32 columns.
        unsafe { self.launch(split, [tiles, SEGMENTS, 1], 32, 0, &args)? };
        if launch.grid[2] == 1 {
            return self.run_product(launch, tokens, vec![parts.arg()?], matrices, to);
        }
        let rows = matrices.iter().map(|m| m.rows).sum();
        let sums = self.part(SEGMENTS * tokens, rows)?;
        let own = Outputs { part: &sums, column: 0, bias: None };
        self.run_product(launch, tokens, vec![parts.arg()?], matrices, own)?;
        let args = [
            at_column(to.part.address()?, to.column),
            sums.arg()?,
            bias_arg(&to)?,
            Arg::int(tokens),
            Arg::int(rows),
            Arg::long(to.part.dims[1]),
        ];
        let grid = [(tokens * rows).div_ceil(ROW_THREADS), 1, 1];
        // SAFETY: sums are `[8, tokens, rows]`, and rows of the output have `rows` columns from `to.column` on.
        unsafe { self.launch(&self.kernels().add_segments, grid, ROW_THREADS, 0, &args) }
    }

    fn launch_of(&self, tokens: usize, matrices: &[&OnDevice]) -> Launch {
        let rows: Vec<usize> = matrices.iter().map(|m| m.rows).collect();
        let processors = self.facts().multiprocessors as usize;
        PRODUCTS[matrices[0].product].launch(tokens, &rows, matrices[0].columns, processors)
    }

    /// `launch`, which is that of `tokens` tokens and up to `MOST` matrices of one product.
    fn run_product(
        &self,
        launch: Launch,
        tokens: usize,
        x: Vec<Arg>,
        matrices: &[&OnDevice],
        to: Outputs,
    ) -> Result<()> {
        let (first, stride) = (matrices[0], to.part.dims[1]);
        let (product, kernels) = (&PRODUCTS[first.product], &self.kernels().products[first.product]);
        let mut args = vec![at_column(to.part.address()?, to.column)];
        args.extend(x);
        args.push(bias_arg(&to)?);
        args.extend([Arg::int(tokens), Arg::int(first.columns), Arg::long(stride)]);
        for n in 0..MOST {
            args.extend(matrix_args(product.weights, matrices.get(n).copied())?);
        }
        let function = launch.gemv.map_or(&kernels.gemm[launch.gemm], |which| &kernels.gemv[which]);
        // SAFETY: all arguments were made for this product, in the sizes that its kernels require.
        unsafe { self.launch(function, launch.grid, launch.threads, launch.shared, &args) }
    }
}

/// The bias of the first output's column on, or null.
fn bias_arg(to: &Outputs) -> Result<Arg> {
    match to.bias {
        Some(bias) => Ok(at_column(bias.values.address(0)?, to.column)),
        None => Ok(NULL),
    }
}

/// The kernel arguments of one matrix. A missing matrix has 0 rows.
fn matrix_args(weights: Weights, matrix: Option<&OnDevice>) -> Result<Vec<Arg>> {
    let (mut args, mut rows) = ([NULL, NULL, Arg::Int(0)], 0);
    if let Some(matrix) = matrix {
        args = [at(&matrix.codes)?, at(&matrix.scales)?, Arg::Int(matrix.scale_step)];
        rows = matrix.rows;
    }
    let own = match weights {
        Weights::Whole => 3,
        Weights::Blocks | Weights::Supers | Weights::Scaled => 2,
        Weights::Dense | Weights::Halves => 1,
    };
    Ok(args[..own].iter().copied().chain([Arg::int(rows)]).collect())
}

/// Calls `run` for each run of adjacent matrices, and advances the output column past it.
fn each<'a>(
    runs: impl Iterator<Item = &'a [&'a OnDevice]>,
    mut to: Outputs,
    mut run: impl FnMut(&[&OnDevice], Outputs) -> Result<()>,
) -> Result<()> {
    for matrices in runs {
        run(matrices, to)?;
        to.column += matrices.iter().map(|m| m.rows).sum::<usize>();
    }
    Ok(())
}

/// The rows of a source that needs no computation.
pub(super) fn plain<'a>(source: Source<'a>) -> Result<&'a Part> {
    match source {
        Source::Rows(x) => Ok(x),
        _ => Err(Error::internal("a sum or a gate that was not computed")),
    }
}
