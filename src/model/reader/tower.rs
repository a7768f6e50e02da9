//! Reads a vision tower from a checkpoint.

use super::Reader;
use crate::base::{Bytes, Error, Result, reserve};
use crate::kernels::{DType, Matrix};
use crate::model::tower::family::{Merge, Positions, ProjectorNorm, Rotation, Width};
use crate::model::tower::{Embedding, Tower, TowerConfig};
use crate::ops::pass::{Attend, Op, Pass, Product, Program, Reg};
use crate::ops::{Norm, Projections};
use crate::picture::Processor;
use std::sync::Arc;

const IMAGE_BREAK: &str = "v.token_embd.img_break";

impl Reader<'_> {
    pub(crate) fn tower(mut self, c: TowerConfig, processor: Processor) -> Result<Tower> {
        let mut programs = Vec::new();
        reserve(&mut programs, 3 * c.layers + 2, "a tower")?;
        programs.push(self.patches(&c)?);
        for index in 0..c.layers {
            programs.extend(self.tower_layer(index, &c)?);
        }
        programs.push(self.projector(&c)?);
        // Files may have a tower for sounds beside it, and the embedding of a token that prompts have between rows.
        let beside = |name: &str| name.starts_with("a.") || name.starts_with("mm.a.") || name == IMAGE_BREAK;
        self.all_used(&beside)?;
        let other_bytes = self.files.other_bytes();
        Ok(Tower::new(c, programs, processor, other_bytes))
    }

    /// The embedding of patches.
    fn patches(&mut self, c: &TowerConfig) -> Result<Program> {
        let mut pass = Pass::default();
        let given = pass.register(c.patch_len());
        pass.push(Op::Check);
        let bias = match self.has("v.patch_embd.bias") {
            true => Some(self.vector("v.patch_embd.bias", c.hidden)?),
            false => None,
        };
        let weights = Projections { bias, ..[self.patch_weights(c)?].into() };
        let x = pass.linear(given, None, Product::whole(weights));
        if let Some(table) = self.positions(c)? {
            let positions = pass.make(|to| Op::Blend { table, to });
            pass.add(x, positions, None);
        }
        if self.has("v.pre_ln.weight") {
            let norm = self.tower_norm("v.pre_ln", c.hidden, c)?;
            pass.push(Op::NormColumns { x, from: 0, norm });
        }
        pass.push(Op::Hidden { x, norm: self.last_norm(c, 0)? });
        Program::new(&pass, &[given], true)
    }

    /// The product of patches.
    fn patch_weights(&mut self, c: &TowerConfig) -> Result<Matrix> {
        const NAME: &str = "v.patch_embd.weight";
        let (side, len, pixels) = (c.patch, c.patch_len(), c.patch * c.patch);
        match c.embedding {
            Embedding::Matrix => self.dense(NAME, c.hidden, len),
            Embedding::Convolution => {
                let (two, three) = ([c.hidden, 3, side, side], [c.hidden, 3, c.frames, side, side]);
                let shape = if c.family.sizes.frames.is_some() { &three[..] } else { &two };
                let from = self.folded(NAME, shape, c.hidden, len)?;
                if !c.family.colors_last {
                    return Ok(from);
                }
                let place = |row: usize, at: usize| row * len + at % 3 * pixels + at / 3;
                self.gathered(NAME, &from, [c.hidden, len], &place)
            }
            Embedding::Frames => {
                let names = [NAME, "v.patch_embd.weight.1"];
                let mut frames = Vec::new();
                for name in names {
                    frames.push(self.folded(name, &[c.hidden, 3, side, side], c.hidden, 3 * pixels)?);
                }
                self.joined(names[1], &frames, pixels)
            }
        }
    }

    fn positions(&mut self, c: &TowerConfig) -> Result<Option<Matrix>> {
        const NAME: &str = "v.position_embd.weight";
        match c.family.positions {
            Positions::None => Ok(None),
            Positions::Sides => {
                self.folded(NAME, &[2, c.positions, c.hidden], 2 * c.positions, c.hidden).map(Some)
            }
            _ => self.dense(NAME, c.positions, c.hidden).map(Some),
        }
    }

    /// The products for attention, attention, and the rest of a layer: only attention needs all rows.
    fn tower_layer(&mut self, index: usize, c: &TowerConfig) -> Result<[Program; 3]> {
        let name = |part: &str| format!("v.blk.{index}.{part}");
        let mut pass = Pass::default();
        let x = pass.register(c.hidden);
        pass.push(Op::Check);
        let norm = self.tower_norm(&name("ln1"), c.hidden, c)?;
        let qkv = self.multiplied(c, &mut pass, x, Some(norm), &self.qkv_products(c, &name))?;
        pass.push(Op::Hidden { x: qkv, norm: None });
        let products = Program::new(&pass, &[x], true)?;
        let mut pass = Pass::default();
        let qkv = pass.register(c.attention.qkv());
        pass.push(Op::Check);
        let how = Arc::new(self.tower_heads(c, &name)?);
        let mixed = pass.make(|to| Op::Encode { qkv, how, to });
        pass.push(Op::Hidden { x: mixed, norm: None });
        let attention = Program::new(&pass, &[qkv], true)?;
        Ok([products, attention, self.tower_rest(index, c)?])
    }

    fn tower_rest(&mut self, index: usize, c: &TowerConfig) -> Result<Program> {
        let name = |part: &str| format!("v.blk.{index}.{part}");
        let heads = c.attention.heads * c.attention.head_dim;
        let mut pass = Pass::default();
        let (x, mixed) = (pass.register(c.hidden), pass.register(heads));
        pass.push(Op::Check);
        let update = self.multiplied(c, &mut pass, mixed, None, &[(name("attn_out"), [c.hidden, heads])])?;
        pass.add(x, update, self.optional_norm(&name("attn_post_norm"), c)?);
        let norm = self.tower_norm(&name("ln2"), c.hidden, c)?;
        let [up, down] = if c.swapped { ["ffn_down", "ffn_up"] } else { ["ffn_up", "ffn_down"] };
        let gate_up = [("ffn_gate", c.activation.gated()), (up, true)].into_iter().filter(|(_, has)| *has);
        let gate_up: Vec<_> = gate_up.map(|(part, _)| (name(part), [c.ffn, c.hidden])).collect();
        let gate_up = self.multiplied(c, &mut pass, x, Some(norm), &gate_up)?;
        let gated = pass.make(|to| Op::Gated { x: gate_up, activation: c.activation, to });
        let update = self.multiplied(c, &mut pass, gated, None, &[(name(down), [c.hidden, c.ffn])])?;
        pass.add(x, update, self.optional_norm(&name("ffn_post_norm"), c)?);
        pass.push(Op::Hidden { x, norm: self.last_norm(c, index + 1)? });
        Program::new(&pass, &[x, mixed], true)
    }

    fn qkv_products(&self, c: &TowerConfig, name: &dyn Fn(&str) -> String) -> Vec<(String, [usize; 2])> {
        let a = &c.attention;
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let parts = [("attn_qkv", q + 2 * kv), ("attn_q", q), ("attn_k", kv), ("attn_v", kv)];
        let parts = if self.has(&name("attn_qkv.weight")) { &parts[..1] } else { &parts[1..] };
        parts.iter().map(|(part, rows)| (name(part), [*rows, c.hidden])).collect()
    }

    /// Pushes products (name, rows and columns) of the same rows, side by side. If the files have bounds of a product's
    /// inputs and outputs, each of the products is an operation of its own.
    fn multiplied(
        &mut self,
        c: &TowerConfig,
        pass: &mut Pass,
        x: Reg,
        norm: Option<Norm>,
        wanted: &[(String, [usize; 2])],
    ) -> Result<Reg> {
        let mut bounds = Vec::new();
        for (name, _) in wanted {
            bounds.push([self.bounds(name, "input")?, self.bounds(name, "output")?]);
        }
        let mut made = Vec::new();
        for (name, [rows, cols]) in wanted {
            let mut weights = self.products(&[(name.clone(), *rows)], *cols)?;
            let turns = [".attn_q", ".attn_k"].iter().any(|part| name.ends_with(part));
            if turns && c.family.rotation == Some(Rotation::Apart) {
                weights.matrices[0] = self.turned(name, &weights.matrices[0], c.attention.head_dim)?;
            }
            made.push(weights);
        }
        if bounds.iter().flatten().all(Option::is_none) {
            return Ok(pass.linear(x, norm, Product::whole(beside(made))));
        }
        let clamp = |pass: &mut Pass, x: Reg, bounds: Option<[f32; 2]>| {
            bounds.into_iter().for_each(|[min, max]| pass.push(Op::Clamp { x, min, max }));
        };
        let all = pass.register(wanted.iter().map(|(_, [rows, _])| rows).sum());
        let mut from = 0;
        for (weights, [inputs, outputs]) in made.into_iter().zip(bounds) {
            let own = norm.clone().map_or(x, |norm| pass.make(|to| Op::Norm { x, norm, to }));
            clamp(pass, own, inputs);
            let width = weights.width();
            let part = pass.linear(own, None, Product::whole(weights));
            clamp(pass, part, outputs);
            pass.push(Op::Columns { x: part, from, to: all });
            from += width;
        }
        Ok(all)
    }

    /// The bounds of the inputs or the outputs of a product, `None` without any.
    fn bounds(&mut self, name: &str, of: &str) -> Result<Option<[f32; 2]>> {
        let mut bounds = [f32::NEG_INFINITY, f32::INFINITY];
        for (bound, end) in bounds.iter_mut().zip(["min", "max"]) {
            let name = format!("{name}.{of}_{end}");
            if self.has(&name) {
                *bound = self.files.vector(&name, 1)?[0];
                if bound.is_nan() {
                    return Err(self.bad(&name, "is not a number"));
                }
                self.took(&name, self.files.bytes_of(&name))?;
            }
        }
        // llama.cpp's converter keeps infinite ones as they are.
        Ok(Some(bounds).filter(|[min, max]| *min > f32::MIN || *max < f32::MAX))
    }

    fn tower_heads(&mut self, c: &TowerConfig, name: &dyn Fn(&str) -> String) -> Result<Attend> {
        let plain = Attend::plain(c.attention.clone(), 0);
        if !c.family.normed_heads {
            return Ok(plain);
        }
        let dim = c.attention.head_dim;
        let mut norm = |part: &str| {
            let norm = self.tower_norm(&name(part), dim, c)?;
            let weight = (0..dim).map(|at| norm.weight[apart(at, dim)]).collect();
            Ok::<_, Error>(Norm { weight, ..norm })
        };
        let norms = [norm("attn_q_norm")?, norm("attn_k_norm")?];
        Ok(Attend { norms: Some(norms), value_norm: Some(bare(dim, c.eps)), ..plain })
    }

    /// What makes soft tokens of patches.
    fn projector(&mut self, c: &TowerConfig) -> Result<Program> {
        let (family, mut pass) = (&c.family.projector, Pass::default());
        let given = pass.register(c.group() * c.hidden);
        pass.push(Op::Check);
        let mut x = match c.family.merge {
            Merge::Beside => given,
            Merge::Average => pass.make(|to| Op::Average { x: given, parts: c.group(), to }),
        };
        let mut norm = self.projector_norm(c)?;
        if family.root_of_width {
            pass.push(Op::Scale { x, by: (c.hidden as f32).sqrt() });
        }
        if self.has("v.std_scale") {
            let [minus, by] = ["v.std_bias", "v.std_scale"].map(|name| self.vector(name, c.hidden));
            pass.push(Op::Standardize { x, minus: minus?, by: by? });
        }
        let mut cols = c.merged();
        for (at, (name, width)) in family.products.iter().enumerate() {
            let rows = match width {
                Width::Same => cols,
                Width::Hidden => c.hidden,
                Width::Inner => c.inner,
                Width::Model => c.width,
            };
            let weights = self.projection(c, name, [rows, cols], at)?;
            if at > 0 && at + 1 == family.products.len() {
                let activation = c.projector_activation;
                x = pass.make(|to| Op::Gated { x, activation, to });
            }
            x = pass.linear(x, norm.take(), Product::whole(weights));
            cols = rows;
        }
        pass.push(Op::Hidden { x, norm: None });
        Program::new(&pass, &[given], true)
    }

    /// A product of the projector, number `at`.
    fn projection(
        &mut self,
        c: &TowerConfig,
        name: &str,
        [rows, cols]: [usize; 2],
        at: usize,
    ) -> Result<Projections> {
        let (family, own) = (&c.family.projector, format!("{name}.weight"));
        if family.transposed && at + 1 == family.products.len() {
            let from = self.matrix(&own, cols, rows)?;
            let made = self.gathered(&own, &from, [rows, cols], &|row, col| col * rows + row)?;
            return Ok([made].into());
        }
        let mut weights = self.products(&[(name.to_owned(), rows)], cols)?;
        if family.by_element && at == 0 {
            let (hidden, group) = (c.hidden, c.group());
            let place = |row: usize, at: usize| row * cols + at % hidden * group + at / hidden;
            weights.matrices[0] = self.gathered(&own, &weights.matrices[0], [rows, cols], &place)?;
        }
        Ok(weights)
    }

    fn projector_norm(&mut self, c: &TowerConfig) -> Result<Option<Norm>> {
        Ok(match c.family.projector.norm {
            None => None,
            Some(ProjectorNorm::Bare) => Some(bare(c.merged(), c.projector_eps)),
            Some(ProjectorNorm::Rms(name, _)) => {
                let weight = self.norm_weight(name, c.merged(), c.projector_offset)?;
                Some(Norm { weight, bias: None, eps: c.projector_eps })
            }
            Some(ProjectorNorm::Layer(name, eps)) => match self.has(&format!("{name}.weight")) {
                true => Some(Norm { eps, ..self.layer_norm(name, c.merged())? }),
                false => None,
            },
        })
    }

    /// The norm of patches after `layers` layers, if those are all.
    fn last_norm(&mut self, c: &TowerConfig, layers: usize) -> Result<Option<Norm>> {
        let Some(name) = c.family.last_norm.filter(|_| layers == c.layers) else { return Ok(None) };
        let norm = self.tower_norm(name, c.hidden, c)?;
        Ok(Some(if name.starts_with("mm.") { Norm { eps: c.projector_eps, ..norm } } else { norm }))
    }

    fn optional_norm(&mut self, name: &str, c: &TowerConfig) -> Result<Option<Norm>> {
        match self.has(&format!("{name}.weight")) {
            true => self.tower_norm(name, c.hidden, c).map(Some),
            false => Ok(None),
        }
    }

    fn tower_norm(&mut self, name: &str, len: usize, c: &TowerConfig) -> Result<Norm> {
        match c.family.rms_norms {
            true => Ok(Norm { weight: self.norm_weight(name, len, 0.0)?, bias: None, eps: c.eps }),
            false => Ok(Norm { eps: c.eps, ..self.layer_norm(name, len)? }),
        }
    }

    fn layer_norm(&mut self, name: &str, len: usize) -> Result<Norm> {
        let weight = self.norm_weight(name, len, 0.0)?;
        Ok(Norm { weight, bias: Some(self.vector(&format!("{name}.bias"), len)?), eps: 0.0 })
    }

    /// The matrix of a tensor with more dimensions, whose `shape` has the slowest one first.
    fn folded(&mut self, name: &str, shape: &[usize], rows: usize, cols: usize) -> Result<Matrix> {
        let matrix = self.files.folded(name, shape, rows, cols)?;
        self.hold(matrix.data.len())?;
        self.took(name, self.files.bytes_of(name))?;
        Ok(matrix)
    }

    /// Rows of q or k in the order in which halves of a head that turn apart are those of a whole one.
    fn turned(&mut self, name: &str, from: &Matrix, dim: usize) -> Result<Matrix> {
        let bytes = from.data.len() / from.rows.max(1);
        let mut data = Vec::new();
        reserve(&mut data, from.data.len(), "rows of weights in another order")?;
        for row in 0..from.rows {
            let own = row / dim * dim + apart(row % dim, dim);
            data.extend_from_slice(&from.data[own * bytes..(own + 1) * bytes]);
        }
        self.replaced(name, from, data, [from.rows, from.cols])
    }

    /// A matrix of `rows` by `cols` elements of `from`, which are at `place(row, column)` there.
    fn gathered(
        &mut self,
        name: &str,
        from: &Matrix,
        [rows, cols]: [usize; 2],
        place: &dyn Fn(usize, usize) -> usize,
    ) -> Result<Matrix> {
        let size = self.element(name, from)?;
        let mut data = Vec::new();
        reserve(&mut data, rows * cols * size, "weights in another order")?;
        for at in 0..rows * cols {
            let own = place(at / cols, at % cols) * size;
            data.extend_from_slice(&from.data[own..own + size]);
        }
        self.replaced(name, from, data, [rows, cols])
    }

    /// Matrices of the same shape as one: `part` columns of each, in turn.
    fn joined(&mut self, name: &str, from: &[Matrix], part: usize) -> Result<Matrix> {
        let [first, ..] = from else { return Err(Error::internal("no matrices to join")) };
        let size = self.element(name, first)?;
        if from.iter().any(|other| other.dtype != first.dtype) {
            return Err(self.bad(name, "has another type than the one before it"));
        }
        let (rows, cols, mut data) = (first.rows, first.cols, Vec::new());
        reserve(&mut data, from.len() * first.data.len(), "weights of frames")?;
        for start in (0..rows * cols).step_by(part) {
            let own = start * size..(start + part) * size;
            from.iter().for_each(|matrix| data.extend_from_slice(&matrix.data[own.clone()]));
        }
        self.replaced(name, first, data, [rows, from.len() * cols])
    }

    /// Bytes of an element.
    fn element(&self, name: &str, matrix: &Matrix) -> Result<usize> {
        match matrix.dtype {
            DType::F32 => Ok(4),
            DType::F16 | DType::BF16 => Ok(2),
            other => Err(Error::unsupported(format!(
                "{}: tensor '{name}' is {other:?}; F32, F16 and BF16 are read here",
                self.what()
            ))),
        }
    }

    /// A matrix of `data`, in place of the file's.
    fn replaced(
        &mut self,
        name: &str,
        from: &Matrix,
        data: Vec<u8>,
        [rows, cols]: [usize; 2],
    ) -> Result<Matrix> {
        from.data.release_pages();
        self.hold(data.len().saturating_sub(from.data.len()))?;
        let made = Matrix::new(Bytes::new(data), from.dtype, rows, cols);
        made.map_err(|e| Error::new(e.status, format!("{}: tensor '{name}': {}", self.what(), e.message)))
    }
}

/// Where the element of a head stands in the file whose pair stands as in a head that turns whole.
fn apart(at: usize, dim: usize) -> usize {
    let (quarter, half) = (dim / 4, dim / 2);
    let (side, pair) = (at / half, at % half);
    pair / quarter * half + side * quarter + pair % quarter
}

/// Products of the same rows as one.
fn beside(products: Vec<Projections>) -> Projections {
    let (mut matrices, mut biases) = (Vec::new(), Vec::new());
    let has = products.iter().any(|product| product.bias.is_some());
    for product in products {
        match &product.bias {
            Some(bias) => biases.extend_from_slice(bias),
            None if has => biases.resize(biases.len() + product.width(), 0.0),
            None => {}
        }
        matrices.extend(product.matrices);
    }
    Projections { bias: has.then(|| biases.into()), ..matrices.into() }
}

/// RMSNorm without weights.
fn bare(width: usize, eps: f32) -> Norm {
    Norm { weight: vec![1.0; width].into(), bias: None, eps }
}
