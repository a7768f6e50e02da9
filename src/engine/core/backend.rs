//! The device or CPU that an engine computes on.

use crate::base::{Error, Result};
use crate::engine::api::{EngineConfig, is_cpu};
use crate::engine::replicas::balance::MAX_REPLICAS;
use crate::kernels::{Isa, Pool};
use crate::model::Loaded;
use crate::ops::pass::Program;
use crate::ops::{CpuOps, CudaOps, OpSet};
use std::collections::HashSet;
use std::sync::Arc;

/// The operations of a pass, and the CPU threads for the rest of a step.
pub(crate) struct Backend {
    pub ops: Box<dyn OpSet>,
    pub pool: Arc<Pool>,
    pub isa: Isa,
    /// Passes run on a device, not on the CPU.
    pub on_device: bool,
    /// Name for the log.
    pub name: String,
    /// Type of the device. Devices of one type give bitwise the same answers.
    kind: String,
}

/// A device that operations run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Cpu,
    /// An NVIDIA device, by its number.
    Cuda(u32),
}

/// Parses device names: "cpu", or "cuda:" and a number, or several CUDA devices separated by commas.
fn devices(text: &str) -> Result<Vec<Device>> {
    if is_cpu(text) {
        return Ok(vec![Device::Cpu]);
    }
    let mut devices = Vec::new();
    for name in text.split(',') {
        let number = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        let device = number.map(Device::Cuda).ok_or_else(|| {
            Error::invalid(format!("device = {text} is neither cpu, nor cuda:0, nor cuda:0,cuda:1 and so on"))
        })?;
        if devices.contains(&device) {
            return Err(Error::invalid(format!("device = {text} names {name} twice")));
        }
        devices.push(device);
    }
    match devices.len() {
        1..=MAX_REPLICAS => Ok(devices),
        n => Err(Error::invalid(format!("device names {n} devices: an engine has {MAX_REPLICAS} at most"))),
    }
}

impl Backend {
    /// One backend for each device of `config`. A single device uses `pool`; several get pools of their own that
    /// share its number of threads. `Unsupported` if the machine lacks what is asked for, or if the devices are of
    /// several types.
    pub(crate) fn all(config: &EngineConfig, pool: &Arc<Pool>) -> Result<Vec<Self>> {
        let devices = devices(&config.device)?;
        let mut all: Vec<Self> = Vec::new();
        for device in &devices {
            let pool = match devices.len() {
                1 => pool.clone(),
                n => Pool::new((pool.threads() / n).max(1))?,
            };
            all.push(Self::new(config, *device, pool)?);
        }
        let another = all.iter().find(|backend| backend.kind != all[0].kind);
        match another {
            None => Ok(all),
            Some(another) => Err(Error::unsupported(format!(
                "device = {} names devices of two types, {} and {}: make an engine for each type",
                config.device, all[0].kind, another.kind
            ))),
        }
    }

    fn new(config: &EngineConfig, device: Device, pool: Arc<Pool>) -> Result<Self> {
        let cpu = match config.instructions {
            Some(isa) => CpuOps::with_isa(pool.clone(), isa)?,
            None => CpuOps::new(pool.clone()),
        };
        let cpu = Self::from(cpu);
        let Device::Cuda(number) = device else { return Ok(cpu) };
        let ops = CudaOps::new(number, pool)?;
        let kind = ops.facts().name.clone();
        let name = format!("device: cuda:{number} ({kind}); {}", cpu.name);
        Ok(Self { ops: Box::new(ops), on_device: true, name, kind, ..cpu })
    }

    /// Number of samplers: one for each thread that may sample.
    pub(crate) fn samplers(&self, config: &EngineConfig) -> usize {
        self.pool.threads().min(config.max_batch_size as usize)
    }

    /// Bytes that `hold` will take for these models, or fewer. Weights that are on the device already count 0.
    pub(crate) fn lacks<'a>(&self, models: impl Iterator<Item = &'a Loaded>) -> u64 {
        let mut seen = HashSet::new();
        let weights = models.flat_map(|loaded| loaded.model.programs()).flat_map(Program::weights);
        weights.map(|weight| self.ops.lacks(weight, &mut seen) as u64).sum()
    }

    /// Refuses a model with layers that the device lacks. `Unsupported`.
    pub(crate) fn supports(&self, loaded: &Loaded) -> Result<()> {
        loaded.model.programs().into_iter().try_for_each(|program| self.ops.supports(program))
    }

    /// Uploads the weights to the device.
    pub(crate) fn hold(&self, loaded: &Loaded) -> Result<()> {
        let mut weights = loaded.model.programs().into_iter().flat_map(Program::weights);
        weights.try_for_each(|weight| self.ops.hold(weight))
    }
}

impl From<CpuOps> for Backend {
    fn from(ops: CpuOps) -> Self {
        let name = format!("instructions: {}", ops.isa().name());
        let (pool, isa, kind) = (ops.pool().clone(), ops.isa(), "cpu".into());
        Self { pool, isa, ops: Box::new(ops), on_device: false, name, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Status;

    #[test]
    fn devices_have_names() {
        for (text, want) in [
            ("", vec![Device::Cpu]),
            ("cpu", vec![Device::Cpu]),
            ("cuda:15", vec![Device::Cuda(15)]),
            ("cuda:2,cuda:0", vec![Device::Cuda(2), Device::Cuda(0)]),
        ] {
            assert_eq!(devices(text).unwrap(), want);
        }
        let wrong =
            ["gpu", "cuda", "cuda:", "cuda:-1", "CPU", "cuda:4294967296", "cuda:0 ", "cpu,cuda:0", "cuda:0,"];
        for text in wrong {
            let error = devices(text).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument);
            assert!(
                error.message.starts_with(&format!("device = {text} is neither cpu, nor cuda:0")),
                "{error}"
            );
        }
        assert_eq!(
            devices("cuda:1,cuda:1").unwrap_err().message,
            "device = cuda:1,cuda:1 names cuda:1 twice"
        );
        let many: Vec<String> = (0..65).map(|n| format!("cuda:{n}")).collect();
        assert!(devices(&many.join(",")).unwrap_err().message.contains("65 devices"));
    }
}
