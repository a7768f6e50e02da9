use super::*;

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
fn memory_that_is_refused_is_an_error_and_no_end() {
    let emulated = Emulated::new();
    emulated.memory(0, 1000);
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
fn a_kernel_runs_with_its_arguments() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let stream = Stream::new(&device).unwrap();
    let module = Module::load(&device, b"an image").unwrap();
    let gather = module.function("bn_gather_rows").unwrap();
    let x = Buffer::new(&device, 4 * 12, "x").unwrap();
    let (rows, y) = (Buffer::new(&device, 8, "rows").unwrap(), Buffer::new(&device, 4 * 8, "y").unwrap());
    x.write(&stream, 0, &floats(&std::array::from_fn::<_, 12, _>(|n| n as f32))).unwrap();
    rows.write(&stream, 0, &[2, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let args = Args::default().pointer(&x).and_then(|args| args.pointer(&rows));
    let mut args = args.and_then(|args| args.pointer(&y)?.int(4)).unwrap();
    let grid = Grid { blocks: [2, 1, 1], threads: [32, 1, 1], shared: 0 };
    // SAFETY: x [3, 4], rows [2] and out [2, 4], as the kernel expects.
    unsafe { gather.launch(&stream, grid, &mut args) }.unwrap();
    let mut got = [0; 32];
    y.read(&stream, 0, &mut got).unwrap();
    assert_eq!(got[..], floats(&[8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 3.0]));
    let error = module.function("bn_no_such_kernel").err().unwrap();
    assert!(error.message.contains("CUDA_ERROR_NOT_FOUND"), "{}", error.message);
    drop((gather, x, rows, y, module, stream, device));
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn the_kernels_of_the_library_are_loaded_or_said_to_be_missing() {
    let emulated = Emulated::new();
    let image = kernels();
    assert_eq!(image.is_ok(), cfg!(feature = "cuda"));
    match image {
        Ok(image) => drop(Module::load(&device().unwrap(), image).unwrap()),
        Err(error) => {
            assert_eq!(error.status, Status::Unsupported);
            assert!(error.message.contains("without kernels for NVIDIA GPUs"), "{}", error.message);
        }
    }
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn shared_memory_must_be_asked_for() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let (module, stream) = (Module::load(&device, b"an image").unwrap(), Stream::new(&device).unwrap());
    let function = module.function("bn_add").unwrap();
    let grid = Grid { blocks: [1, 1, 1], threads: [32, 1, 1], shared: 64 << 10 };
    let launch = |function: &Function| {
        let mut args = Args::default().size(0)?.size(0)?.size(0)?;
        // SAFETY: no elements.
        unsafe { function.launch(&stream, grid, &mut args) }
    };
    assert!(launch(&function).unwrap_err().message.contains("CUDA_ERROR_INVALID_VALUE"));
    function.allow_shared(64 << 10).unwrap();
    launch(&function).unwrap();
    // Static shared memory counts towards a kernel's maximum.
    emulated.shared(64 << 10, 1 << 10);
    function.allow_shared(64 << 10).unwrap();
    assert!(launch(&function).unwrap_err().message.contains("CUDA_ERROR_INVALID_VALUE"));
    emulated.shared(65 << 10, 1 << 10);
    function.allow_shared(65 << 10).unwrap();
    launch(&function).unwrap();
    drop((function, module, stream, device));
    assert_eq!(emulated.live(), 0);
}
