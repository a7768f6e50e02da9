use super::*;
use crate::base::{Result, Status};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;

/// The driver that `cuda/build.sh` makes of the emulation: it keeps memory on the heap and runs kernels on the CPU.
fn library() -> String {
    std::env::var("BN_EMULATED_CUDA").expect("BN_EMULATED_CUDA names the emulated driver (make test-cuda)")
}

/// What the emulated driver offers to tests; its state is the process's, so one test uses it at a time.
struct Emulated {
    handle: *mut c_void,
    _alone: parking_lot::MutexGuard<'static, ()>,
}

static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

impl Emulated {
    fn new() -> Self {
        let alone = ALONE.lock();
        let path = CString::new(library()).unwrap();
        // SAFETY: a terminated name.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{path:?} can be opened");
        let emulated = Self { handle, _alone: alone };
        emulated.memory(1 << 30);
        assert_eq!(emulated.live(), 0, "a test before this one leaves something on the device");
        emulated
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open library.
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    /// Bytes that the device has.
    fn memory(&self, bytes: usize) {
        // SAFETY: its type in emulation/driver.cpp.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(usize)>(self.symbol(c"bn_emulated_memory"))(
                bytes,
            )
        }
    }

    /// The next call of `function` gives `code`.
    fn fail(&self, function: &CStr, code: c_int) {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, c_int)>(
                self.symbol(c"bn_emulated_fail"),
            )(function.as_ptr(), code)
        }
    }

    /// Frees what a lost device keeps.
    fn reset(&self) {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(self.symbol(c"bn_emulated_reset"))() }
    }

    /// Contexts, streams, modules and allocations that there are.
    fn live(&self) -> usize {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn() -> usize>(self.symbol(c"bn_emulated_live"))()
        }
    }
}

fn device() -> Result<Arc<Device>> {
    Device::open(Arc::new(Driver::open(&library())?), 0)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn a_machine_without_a_driver_says_so() {
    let error = Driver::open("libcuda-that-is-not-there.so.1").err().unwrap();
    assert_eq!(error.status, Status::Unsupported);
    assert!(
        error.message.starts_with("no NVIDIA driver: libcuda-that-is-not-there.so.1"),
        "{}",
        error.message
    );
    assert_eq!(Driver::open("a\0b").err().unwrap().status, Status::InvalidArgument);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_device_is_found_and_told_of() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let facts = device.facts();
    assert_eq!((facts.name.as_str(), facts.capability), ("Emulated", (9, 0)));
    assert_eq!((facts.total_bytes, device.free_bytes().unwrap()), (1 << 30, 1 << 30));
    let driver = Arc::new(Driver::open(&library()).unwrap());
    let error = Device::open(driver, 1).err().unwrap();
    assert_eq!(
        (error.status, error.message.as_str()),
        (Status::Unsupported, "no device cuda:1: there are 1")
    );
    emulated.fail(c"cuInit", 100);
    let error = self::device().err().unwrap();
    assert_eq!((error.status, error.message.as_str()), (Status::Unsupported, "cuInit: CUDA_ERROR_NO_DEVICE"));
    drop(device);
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn bytes_go_there_and_come_back() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let stream = Stream::new(&device).unwrap();
    let [a, b] = [100, 60].map(|bytes| Buffer::new(&device, bytes, "a buffer").unwrap());
    a.fill(&stream, 7).unwrap();
    a.write(&stream, 10, &[1, 2, 3]).unwrap();
    a.copy(&stream, 9, &b, 55, 5).unwrap();
    let mut got = [0; 5];
    b.read(&stream, 55, &mut got).unwrap();
    assert_eq!(got, [7, 1, 2, 3, 7]);
    for error in [
        a.write(&stream, 98, &[0; 3]).unwrap_err(),
        a.read(&stream, usize::MAX, &mut got).unwrap_err(),
        a.copy(&stream, 0, &b, 56, 5).unwrap_err(),
        a.address(101).unwrap_err(),
    ] {
        assert_eq!(error.status, Status::Internal, "{error:?}");
    }
    Buffer::new(&device, 0, "nothing").unwrap().fill(&stream, 1).unwrap();
    drop((a, b, stream, device));
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_kernel_runs_with_its_arguments() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let stream = Stream::new(&device).unwrap();
    let module = Module::load(&device, b"an image").unwrap();
    let gather = module.function(c"bn_gather_rows").unwrap();
    let x = Buffer::new(&device, 4 * 12, "x").unwrap();
    let (rows, y) = (Buffer::new(&device, 8, "rows").unwrap(), Buffer::new(&device, 4 * 8, "y").unwrap());
    x.write(&stream, 0, &floats(&std::array::from_fn::<_, 12, _>(|n| n as f32))).unwrap();
    rows.write(&stream, 0, &[2, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let args = Args::default().pointer(&x).and_then(|args| args.pointer(&rows));
    let mut args = args.and_then(|args| args.pointer(&y)?.int(4)).unwrap();
    let grid = Grid { blocks: [2, 1, 1], threads: [32, 1, 1], shared: 0 };
    // SAFETY: x [3, 4], rows [2] and out [2, 4], as the kernel has them.
    unsafe { gather.launch(&stream, grid, &mut args) }.unwrap();
    let mut got = [0; 32];
    y.read(&stream, 0, &mut got).unwrap();
    assert_eq!(got[..], floats(&[8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 3.0]));
    let error = module.function(c"bn_no_such_kernel").err().unwrap();
    assert!(error.message.contains("CUDA_ERROR_NOT_FOUND"), "{}", error.message);
    drop((gather, x, rows, y, module, stream, device));
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn memory_that_is_refused_is_an_error_and_no_end() {
    let emulated = Emulated::new();
    emulated.memory(1000);
    let device = device().unwrap();
    let most = Buffer::new(&device, 900, "the KV cache").unwrap();
    let error = Buffer::new(&device, 200, "the weights").err().unwrap();
    assert_eq!(error.status, Status::OutOfMemory);
    assert_eq!(error.message, "could not allocate 200 bytes for the weights on the device");
    assert_eq!(device.free_bytes().unwrap(), 100);
    drop(most);
    Buffer::new(&device, 200, "the weights").unwrap();
    for function in [c"cuStreamCreate", c"cuModuleLoadData"] {
        emulated.fail(function, 2);
        let error = Stream::new(&device).map(drop).and(Module::load(&device, &[]).map(drop)).unwrap_err();
        assert_eq!(error.status, Status::OutOfMemory, "{function:?}: {error:?}");
    }
    drop(device);
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_lost_device_says_so_from_then_on() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let stream = Stream::new(&device).unwrap();
    emulated.fail(c"cuStreamSynchronize", 700);
    for _ in 0..2 {
        let error = stream.synchronize().unwrap_err();
        assert_eq!(error.status, Status::Internal);
        assert!(error.message.ends_with("cuda:0 was lost: CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", error.message);
    }
    assert!(Buffer::new(&device, 8, "a buffer").is_err());
    // Another error is no loss.
    let other = self::device().unwrap();
    emulated.fail(c"cuMemAlloc_v2", 1);
    assert!(Buffer::new(&other, 8, "a buffer").is_err());
    assert!(Buffer::new(&other, 8, "a buffer").is_ok());
    drop((stream, device, other));
    emulated.reset();
}
