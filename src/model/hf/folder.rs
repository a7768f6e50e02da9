//! The folder of a decoder.

use super::config::{self, Config};
use super::fields::Fields;
use super::files::{CONFIG, MAX_CONFIG_BYTES, give_name, warn_of_keys};
use super::names::{self, Name};
use super::place::{Place, floats};
use super::quantization::Weights;
use super::{chat, encoder, interleaved, pooling, quantized, score, text};
use crate::base::{Bytes, Error, Result, Status, reserve};
use crate::formats::gguf::expert;
use crate::formats::hf::{Folder, Tensors, other};
use crate::formats::safetensors::{ElementType, TensorInfo};
use crate::kernels::pack::requantize;
use crate::kernels::{DType, Matrix, Pool, pack};
use crate::model::checkpoint::Checkpoint;
use crate::model::config::DecoderConfig;
use crate::model::fused;
use crate::model::score::ScoreRows;
use crate::text::{ChatTemplate, Tokenizer};
use std::collections::HashMap;
use std::sync::Arc;

/// An opened folder.
pub struct HfFolder {
    pub(super) folder: Folder,
    pub(super) config: Config,
    pub(super) tensors: Tensors,
    /// The files' own names, by GGUF's names.
    pub(super) by_name: HashMap<String, String>,
    /// The files' names that are not part of any model that we know.
    pub(super) unknown: Vec<String>,
}

impl HfFolder {
    /// Opens a decoder's folder. `Io` if something cannot be opened; `BadModel` or `Unsupported` for a `config.json` or
    /// safetensors that are wrong or not supported. The error is one sentence that names the file and the field.
    pub fn open(path: &str) -> Result<Self> {
        let folder = Folder::open(path)?;
        let what = folder.path_of(CONFIG);
        let Some(json) = folder.read(CONFIG, MAX_CONFIG_BYTES)? else {
            let hint = other(&folder);
            let message =
                format!("cannot open model folder '{}': it has no config.json{hint}", folder.what());
            return Err(Error::new(Status::Io, message));
        };
        let json = config::parse(&json, &what)?;
        let fields = Fields::new(&json, &what)?;
        if encoder::family_of(&fields)?.is_some() {
            return Err(fields.unsupported("model_type", "it is an encoder, and a decoder is asked for"));
        }
        let mut config = Config::read(&fields, folder.name())?;
        let modules = pooling::modules(&folder)?;
        config.decoder.pooling = pooling::of_decoder(&folder, &modules)?;
        config.decoder.raw_embeddings = modules.raw;
        config.decoder.score = score::read(&folder, &fields, config.decoder.family, &modules)?;
        let tensors = Tensors::open(&folder)?;
        if tensors.iter().any(|(_, tensor)| names::is_embedding_norm(&tensor.name)) {
            config.is_bitnet_embedding(&what)?;
        }
        let mut opened = Self { folder, config, tensors, by_name: HashMap::new(), unknown: Vec::new() };
        opened.name_tensors()?;
        Ok(opened)
    }

    /// Gives each tensor its GGUF name. Skips buffers, and lists tensors that are not part of a model that we know.
    fn name_tensors(&mut self) -> Result<()> {
        let weights = self.config.quantization.weights;
        let scaled = matches!(weights, Weights::Packed { .. } | Weights::Quantized(_) | Weights::Mxfp4);
        for (file, tensor) in self.tensors.iter() {
            reserve(&mut self.unknown, 1, "tensor names")?;
            let parts = match self.canonical(&tensor.name) {
                Name::Buffer => continue,
                // Like transformers, ignores a tied head in the files and uses the embedding.
                Name::Tensor(name) if name == "output.weight" && self.config.tied => continue,
                Name::Tensor(name) if self.is_idle_bias(&name, &file.data(tensor)?) => continue,
                Name::Tensor(name) => vec![name],
                Name::Parts(parts) => parts,
                // Read along with its weights.
                Name::Scale(_) if scaled => continue,
                Name::Scale(_) | Name::Unknown => {
                    self.unknown.push(tensor.name.clone());
                    continue;
                }
            };
            for part in parts {
                give_name(&mut self.by_name, part, &tensor.name, file.what())?;
            }
        }
        Ok(())
    }

    /// The meaning of a tensor's name.
    fn canonical(&self, name: &str) -> Name {
        let DecoderConfig { family, layers, .. } = self.config.decoder;
        if name == "score.weight" && matches!(self.config.decoder.score, Some(ScoreRows::Labels { .. })) {
            return Name::Tensor("cls.output.weight".into());
        }
        let named = |name: &str| {
            names::further(family, layers, name).unwrap_or_else(|| names::canonical(family, name))
        };
        let product = match self.config.quantization.weights {
            Weights::Quantized(quantized) => quantized::product(quantized.method, name),
            _ => None,
        };
        match product.map(|(product, weights)| (named(&product), weights)) {
            None => named(name),
            Some((name, true)) => name,
            Some((Name::Tensor(name), false)) => Name::Scale(name),
            Some((Name::Parts(mut parts), false)) => Name::Scale(parts.swap_remove(0)),
            Some((_, false)) => Name::Unknown,
        }
    }

    fn is_idle_bias(&self, name: &str, data: &[u8]) -> bool {
        match self.config.quantization.weights {
            Weights::Quantized(quantized) => {
                quantized::is_idle_bias(quantized.method, name, &self.config.decoder.parts, data)
            }
            _ => false,
        }
    }

    /// The tensor with this GGUF name: its bytes, its info, and its name in errors.
    pub(super) fn find(&self, name: &str) -> Result<(Bytes, &TensorInfo, Place<'_>)> {
        let Some((file, tensor)) = self.own(name).and_then(|own| self.tensors.find(own)) else {
            let DecoderConfig { family, layers, .. } = self.config.decoder;
            let wanted = names::own(family, layers, name).unwrap_or_else(|| name.to_owned());
            return Err(Error::bad_model(format!(
                "{}: there is no tensor '{wanted}', which the config.json asks for",
                self.folder.what()
            )));
        };
        Ok((file.data(tensor)?, tensor, Place { file: file.what(), tensor: &tensor.name }))
    }

    /// The file's name of a tensor, or of one that holds it beside others.
    fn own(&self, name: &str) -> Option<&str> {
        let own = self.by_name.get(name).or_else(|| self.by_name.get(&expert(name)?.0));
        own.map(String::as_str)
    }

    /// One expert's matrix of a tensor that has those of all experts, `[experts, rows, cols]`, of gate and up
    /// `[experts, 2 rows, cols]`. `None` if the expert has a tensor of its own.
    fn expert(&self, tensor: &str, rows: usize, cols: usize) -> Result<Option<Matrix>> {
        let Some((all, n)) = expert(tensor).filter(|_| !self.by_name.contains_key(tensor)) else {
            return Ok(None);
        };
        let (data, info, at) = self.find(tensor)?;
        let count = self.config.decoder.experts.map_or(0, |experts| experts.count);
        let parts = self.parts_of(&info.name);
        let part = parts.iter().position(|name| *name == all).unwrap_or(0);
        at.shape(info, &[count, parts.len() * rows, cols])?;
        let bytes = data.len() / count.max(1) / parts.len();
        let from = (n * parts.len() + part) * bytes;
        let data = data.slice(from..from + bytes);
        let data =
            data.ok_or_else(|| at.bad(&format!("has {count} experts, and number {n} is asked for")))?;
        Matrix::new(data, at.dtype(info)?, rows, cols).map(Some).map_err(|e| at.of(e))
    }

    /// The rows of a product that stands among others in a tensor; `None` if it has one of its own.
    fn among(&self, tensor: &str, rows: usize, cols: usize) -> Result<Option<Matrix>> {
        let own = self.own(tensor).map(|own| self.parts_of(own)).unwrap_or_default();
        let joined = &self.config.decoder.family.joined;
        let Some(part) =
            own.iter().position(|part| part == tensor).filter(|_| !joined.is_empty() && own.len() > 1)
        else {
            return Ok(None);
        };
        let (data, info, at) = self.find(tensor)?;
        at.shape(info, &[own.len() * rows, cols])?;
        let bytes = data.len() / own.len();
        let data = data.slice(part * bytes..(part + 1) * bytes);
        let data = data.ok_or_else(|| at.bad("ends before its last part"))?;
        Matrix::new(data, at.dtype(info)?, rows, cols).map(Some).map_err(|e| at.of(e))
    }

    /// The rows of a product that a file has in pieces; `None` if it has it as it is.
    fn gathered(&self, pool: &Pool, tensor: &str, cols: usize) -> Result<Option<Matrix>> {
        let shape = fused::shape(&self.config.decoder);
        let Some((shape, rows)) = shape.and_then(|shape| Some((shape, fused::rows(tensor, shape)?))) else {
            return Ok(None);
        };
        let whole = self.stored(pool, tensor, rows, cols)?;
        let (_, _, at) = self.find(tensor)?;
        let made = fused::gather(tensor, shape, &whole).map_err(|e| at.of(e))?;
        whole.data.release_pages();
        Ok(Some(made))
    }

    /// The matrix of a tensor: as it is, or in a type of ours if another tool has quantized it.
    fn stored(&self, pool: &Pool, tensor: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let (data, info, at) = self.find(tensor)?;
        if let Weights::Quantized(quantized) = self.config.quantization.weights {
            let made = quantized::read(quantized.method, pool, &self.tensors, info, [rows, cols])?;
            if let Some(matrix) = made {
                return Ok(matrix);
            }
        }
        match *info.shape {
            // A depthwise convolution, as torch stores it.
            [channels, 1, kernel] => at.equal(info, &[channels, kernel], &[rows, cols])?,
            _ => at.shape(info, &[rows, cols])?,
        }
        Matrix::new(data, at.dtype(info)?, rows, cols).map_err(|e| at.of(e))
    }

    /// The parts of the model that a tensor of the files holds.
    pub(super) fn parts_of(&self, own: &str) -> Vec<String> {
        match self.canonical(own) {
            Name::Parts(parts) => parts,
            _ => vec![own.to_owned()],
        }
    }

    /// Unpacks uint8 codes and their scale.
    fn unpack(&self, pool: &Pool, name: &str, rows: usize, cols: usize, divide: bool) -> Result<Matrix> {
        let (data, tensor, at) = self.find(name)?;
        if tensor.ty != ElementType::U8 {
            let why = format!("is {} where quantization_config says packed ternary, U8", tensor.type_name);
            return Err(at.unsupported(&why));
        }
        if !rows.is_multiple_of(4) {
            return Err(at.unsupported(&format!("has {rows} rows, which are not packed by four")));
        }
        at.shape(tensor, &[rows / 4, cols])?;
        let scale = self.scale(tensor, divide)?;
        let mut scales: Vec<f32> = Vec::new();
        scales.try_reserve_exact(rows).map_err(|_| Error::out_of_memory(name, rows * 4))?;
        scales.resize(rows, scale);
        let matrix = pack::pack_uint8(pool, &data, rows, cols, &scales).map_err(|e| at.of(e))?;
        data.release_pages();
        Ok(matrix)
    }

    /// The factor on the codes of `weights`.
    fn scale(&self, weights: &TensorInfo, divide: bool) -> Result<f32> {
        let name = format!("{}_scale", weights.name);
        let Some((file, tensor)) = self.tensors.find(&name) else {
            let what = self.folder.what();
            return Err(Error::bad_model(format!("{what}: tensor '{name}' is missing beside its weights")));
        };
        let at = Place { file: file.what(), tensor: &name };
        if tensor.elements() != 1 {
            return Err(at.bad(&format!("has the shape {:?} where one scale belongs", tensor.shape)));
        }
        let scale = floats(&file.data(tensor)?, tensor.ty, 1).ok_or_else(|| at.not_float(tensor))?[0];
        let scale = if divide { 1.0 / scale } else { scale };
        match scale.is_finite() {
            true => Ok(scale),
            false => Err(at.bad(&format!("makes a scale of {scale}"))),
        }
    }
}

impl Checkpoint for HfFolder {
    fn what(&self) -> &str {
        self.folder.what()
    }

    fn config(&self, warn: &dyn Fn(&str)) -> Result<DecoderConfig> {
        warn_of_keys(&self.folder, &self.config.unknown, warn);
        if matches!(self.config.quantization.weights, Weights::Quantized(quantized) if quantized.ranges) {
            let why = "ranges of activations or of cached keys and values, which are not used";
            warn(&format!("{}: 'quantization_config' has {why}", self.folder.path_of(CONFIG)));
        }
        if !self.config.tied && !self.has("output.weight") {
            warn(&format!("{}: there is no lm_head.weight: the head is the embedding", self.folder.what()));
        }
        let sampling = text::sampling(&self.folder, warn)?;
        Ok(DecoderConfig { sampling, ..self.config.decoder.clone() })
    }

    fn tokenizer(&self, warn: &dyn Fn(&str)) -> Result<Option<Tokenizer>> {
        text::tokenizer(&self.folder, warn)
    }

    fn end_tokens(&self, n: usize) -> Result<Vec<u32>> {
        text::end_tokens(&self.folder, n)
    }

    fn chat(&self, warn: &dyn Fn(&str)) -> Result<Option<ChatTemplate>> {
        chat::read(&self.folder, warn)
    }

    fn pair(&self) -> Result<Option<ChatTemplate>> {
        score::template(&self.folder, self.config.decoder.family)
    }

    fn has(&self, tensor: &str) -> bool {
        self.by_name.contains_key(tensor)
    }

    fn matrix(&self, pool: &Pool, tensor: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let ternary = names::is_projection(tensor);
        if let (true, Weights::Packed { divide }) = (ternary, self.config.quantization.weights) {
            return self.unpack(pool, tensor, rows, cols, divide);
        }
        if let Some(matrix) = self.interleaved(pool, tensor, rows, cols)? {
            return Ok(matrix);
        }
        if let Some(matrix) = self.expert(tensor, rows, cols)? {
            return Ok(matrix);
        }
        if let Some(matrix) = self.gathered(pool, tensor, cols)? {
            return Ok(matrix);
        }
        if let Some(matrix) = self.among(tensor, rows, cols)? {
            return Ok(matrix);
        }
        let matrix = self.stored(pool, tensor, rows, cols)?;
        if !(ternary && self.config.quantization.weights == Weights::Online) {
            return Ok(matrix);
        }
        let (_, _, at) = self.find(tensor)?;
        let ternary = requantize::quantize(pool, &matrix, DType::Ternary).map_err(|e| at.of(e))?;
        matrix.data.release_pages();
        Ok(ternary)
    }

    fn vector(&self, tensor: &str, len: usize) -> Result<Arc<[f32]>> {
        let (data, info, at) = self.find(tensor)?;
        at.shape(info, &[len])?;
        let mut floats = floats(&data, info.ty, len).ok_or_else(|| at.not_float(info))?;
        if tensor.ends_with(".ssm_a") {
            // Stored as its logarithm, and in GGUF as it is used.
            floats.iter_mut().for_each(|a| *a = -a.exp());
        }
        Ok(floats.into())
    }

    fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        reserve(&mut names, self.by_name.len() + self.unknown.len(), "tensor names")?;
        names.extend(self.by_name.keys().chain(&self.unknown).cloned());
        Ok(names)
    }

    fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|(_, tensor)| tensor.byte_len() as u64).sum()
    }

    fn bytes_of(&self, tensor: &str) -> u64 {
        let Some((_, info)) = self.own(tensor).and_then(|own| self.tensors.find(own)) else { return 0 };
        let one_of = !self.by_name.contains_key(tensor);
        let experts = if one_of { info.shape.first().copied().unwrap_or(1).max(1) } else { 1 };
        let scales = interleaved::scales_of(&info.name).and_then(|name| self.tensors.find(&name));
        let bytes = info.byte_len() + scales.map_or(0, |(_, scales)| scales.byte_len());
        (bytes / experts / self.parts_of(&info.name).len()) as u64
    }

    fn other_bytes(&self) -> u64 {
        self.tensors.header_bytes()
    }
}
