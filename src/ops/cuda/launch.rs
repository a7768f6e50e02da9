//! The device that operations run on, and the queue of work that they give to it.

use super::kernels::Kernels;
use super::weights::Registry;
use crate::base::sync::Mutex;
use crate::base::{Error, Result, fork, reserve};
use crate::device::{Args, Buffer, Device, Driver, Function, Graph, Grid, Module, Stream, kernels};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// An open device with its kernels and the weights in its memory. All engines of a process share it.
pub(crate) struct Opened {
    pub device: Arc<Device>,
    pub kernels: Kernels,
    pub weights: Registry,
    number: u32,
}

static OPENED: Mutex<Vec<Weak<Opened>>> = Mutex::new(Vec::new());
/// Fork generation (number of forks) of the process that first asked for a device.
static FIRST: OnceLock<u32> = OnceLock::new();

impl Opened {
    /// Returns device `number`, and opens it if it is not open yet. `Unsupported` if there is no such device that we
    /// can use.
    pub(crate) fn get(number: u32) -> Result<Arc<Self>> {
        let generation = fork::generation();
        if *FIRST.get_or_init(|| generation) != generation {
            return Err(Error::unsupported(
                "a device in a child of a process that has opened one: CUDA does not work there",
            ));
        }
        let mut opened = OPENED.lock();
        opened.retain(|device| device.strong_count() > 0);
        let same = |device: &Arc<Self>| device.number == number;
        match opened.iter().filter_map(Weak::upgrade).find(same) {
            Some(known) if known.device.is_lost() => {
                return Err(Error::unsupported(format!(
                    "cuda:{number} was lost: destroy the engines that run on it first"
                )));
            }
            Some(known) => return Ok(known),
            None => {}
        }
        let driver = Driver::of_machine();
        let image = match &driver {
            Ok(driver) if driver.emulates => &[0],
            _ => kernels()?,
        };
        let device = Device::open(Arc::new(driver?), number)?;
        let kernels = Kernels::new(&Module::load(&device, image)?, device.facts().shared_bytes)?;
        let made = Arc::new(Self { device, kernels, weights: Registry::default(), number });
        opened.push(Arc::downgrade(&made));
        Ok(made)
    }
}

/// Work that is given to the device in order.
pub(crate) struct Queue {
    pub opened: Arc<Opened>,
    pub stream: Stream,
    mode: Mutex<Mode>,
    /// Whether the mode is `Left`.
    left: AtomicBool,
}

/// How launches are handled.
#[derive(Default)]
enum Mode {
    #[default]
    Given,
    /// They are given to the device, and recorded.
    Kept(Vec<Launch>),
    /// They are dropped, because a graph has them.
    Left,
}

struct Launch {
    function: Function,
    grid: Grid,
    args: Args,
}

/// How the launches of a step were handled.
pub(crate) enum Launches {
    Given,
    Kept(Kept),
    /// A graph has them. It must be launched now.
    Left,
}

/// The recorded launches of a step.
pub(crate) struct Kept(Vec<Launch>);

impl Queue {
    pub(crate) fn new(opened: Arc<Opened>) -> Result<Arc<Self>> {
        let stream = Stream::new(&opened.device)?;
        Ok(Arc::new(Self { opened, stream, mode: Mutex::default(), left: AtomicBool::new(false) }))
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.opened.kernels
    }

    /// From now on, launches are given to the device.
    pub(crate) fn give(&self) {
        self.set(Mode::Given);
    }

    /// From now on, launches are given to the device and recorded.
    pub(crate) fn keep(&self) {
        self.set(Mode::Kept(Vec::new()));
    }

    /// From now on, launches are dropped, because a graph has the same ones.
    pub(crate) fn leave(&self) {
        self.set(Mode::Left);
    }

    /// Whether a graph has this step's launches. Code that only prepares launches may then return early.
    pub(crate) fn leaves(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    fn set(&self, mode: Mode) -> Mode {
        self.left.store(matches!(mode, Mode::Left), Ordering::Relaxed);
        std::mem::replace(&mut *self.mode.lock(), mode)
    }

    /// Ends the launches of a step.
    pub(crate) fn end(&self) -> Launches {
        match self.set(Mode::Given) {
            Mode::Given => Launches::Given,
            Mode::Kept(launches) => Launches::Kept(Kept(launches)),
            Mode::Left => Launches::Left,
        }
    }

    /// Launches a kernel over a grid. A grid without blocks does nothing.
    ///
    /// # Safety
    /// The contract of `Function::launch`.
    pub(crate) unsafe fn launch(
        &self,
        function: &Function,
        blocks: [usize; 3],
        threads: usize,
        shared: usize,
        args: &[Arg],
    ) -> Result<()> {
        if self.leaves() || blocks.contains(&0) {
            return Ok(());
        }
        let word =
            |n: usize| u32::try_from(n).map_err(|_| Error::internal("a launch of more than 2^32 blocks"));
        let blocks = [word(blocks[0])?, word(blocks[1])?, word(blocks[2])?];
        let mut all = Args::default();
        for arg in args {
            all = arg.push(all)?;
        }
        let grid = Grid { blocks, threads: [threads as u32, 1, 1], shared: shared as u32 };
        if let Mode::Kept(launches) = &mut *self.mode.lock() {
            reserve(launches, 1, "a step's launches")?;
            launches.push(Launch { function: function.clone(), grid, args: all.clone() });
        }
        // SAFETY: guaranteed by the caller.
        unsafe { function.launch(&self.stream, grid, &mut all) }
    }
}

impl Kept {
    /// Makes a graph of all launches.
    ///
    /// # Safety
    /// The contract of `Function::launch` holds for each launch until the graph is dropped.
    pub(crate) unsafe fn graph(mut self, queue: &Queue) -> Result<Graph> {
        let capture = queue.stream.capture()?;
        for Launch { function, grid, args } in &mut self.0 {
            // SAFETY: guaranteed by the caller.
            unsafe { function.launch(&queue.stream, *grid, args)? };
        }
        capture.end()
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Arg {
    /// A pointer or a 64-bit number.
    Long(u64),
    Int(i32),
    Float(f32),
}

/// Address of a buffer's first byte.
pub(super) fn at(buffer: &Buffer) -> Result<Arg> {
    buffer.address(0).map(Arg::from)
}

/// A null pointer.
pub(super) const NULL: Arg = Arg::Long(0);

impl Arg {
    fn push(self, args: Args) -> Result<Args> {
        match self {
            Self::Long(value) => args.size(value as usize),
            Self::Int(value) => args.int(value),
            Self::Float(value) => args.float(value),
        }
    }

    /// A count that the kernel takes as an `int`.
    pub(crate) fn int(value: usize) -> Self {
        Self::Int(i32::try_from(value).unwrap_or(i32::MAX))
    }

    /// A count that the kernel takes in 64 bits.
    pub(crate) fn long(value: usize) -> Self {
        Self::Long(value as u64)
    }
}

impl From<u64> for Arg {
    fn from(address: u64) -> Self {
        Self::Long(address)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}
