//! What an engine computes on.

use super::api::EngineConfig;
use crate::base::{Error, Result};
use crate::kernels::{Isa, Pool};
use crate::model::Loaded;
use crate::ops::{CudaOps, FusedOps, OpSet};
use std::sync::Arc;

/// The operations of a pass, and the CPU's threads for what is left of a step.
pub struct Backend {
    pub ops: Box<dyn OpSet>,
    pub pool: Arc<Pool>,
    pub isa: Isa,
    /// Passes run elsewhere than on the CPU.
    pub on_device: bool,
    /// As the log says it.
    pub name: String,
}

/// A place that operations work at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Cpu,
    /// An NVIDIA device, by its number.
    Cuda(u32),
}

/// The device that `text` names: "cpu", or "cuda:" and a number.
fn device(text: &str) -> Result<Device> {
    if text.is_empty() || text == "cpu" {
        return Ok(Device::Cpu);
    }
    if text.contains(',') {
        return Err(Error::unsupported(format!(
            "device = {text}: an engine computes on one device; make an engine for each"
        )));
    }
    let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    number
        .map(Device::Cuda)
        .ok_or_else(|| Error::invalid(format!("device = {text} is neither cpu nor cuda:0 and so on")))
}

impl Backend {
    /// `Unsupported` where the machine lacks what `config` asks for.
    pub fn new(config: &EngineConfig, pool: &Arc<Pool>) -> Result<Self> {
        let device = device(&config.device)?;
        let cpu = match config.instructions {
            Some(isa) => FusedOps::with_isa(pool.clone(), isa)?,
            None => FusedOps::new(pool.clone()),
        };
        let cpu = Self::from(cpu);
        let Device::Cuda(number) = device else { return Ok(cpu) };
        let ops = CudaOps::new(number, pool.clone())?;
        let name = format!("device: cuda:{number} ({}); {}", ops.facts().name, cpu.name);
        Ok(Self { ops: Box::new(ops), on_device: true, name, ..cpu })
    }

    /// Takes the weights to where the operations work.
    pub fn hold(&self, loaded: &Loaded) -> Result<()> {
        loaded.model.weights(&mut |weight| self.ops.hold(weight))
    }
}

impl From<FusedOps> for Backend {
    fn from(ops: FusedOps) -> Self {
        let name = format!("instructions: {}", ops.isa().name());
        Self { pool: ops.pool().clone(), isa: ops.isa(), ops: Box::new(ops), on_device: false, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Status;

    #[test]
    fn devices_have_names() {
        for (text, want) in [
            ("", Device::Cpu),
            ("cpu", Device::Cpu),
            ("cuda:0", Device::Cuda(0)),
            ("cuda:15", Device::Cuda(15)),
        ] {
            assert_eq!(device(text).unwrap(), want);
        }
        for text in ["gpu", "cuda", "cuda:", "cuda:-1", "CPU", "cuda:4294967296", "cuda:0 "] {
            let error = device(text).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument);
            assert_eq!(error.message, format!("device = {text} is neither cpu nor cuda:0 and so on"));
        }
        assert_eq!(device("cuda:0,cuda:1").unwrap_err().status, Status::Unsupported);
    }
}
