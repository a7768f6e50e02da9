use super::*;

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
fn a_lost_device_says_so_from_then_on() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let stream = Stream::new(&device).unwrap();
    emulated.fail(c"cuStreamSynchronize", 700);
    for _ in 0..2 {
        let error = stream.synchronize().unwrap_err();
        assert_eq!(error.status, Status::EngineDead);
        assert!(error.message.ends_with("cuda:0 was lost: CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", error.message);
    }
    assert!(Buffer::new(&device, 8, "a buffer").is_err());
    let unknown = self::device().unwrap();
    emulated.fail(c"cuMemAlloc_v2", 999);
    assert_eq!(Buffer::new(&unknown, 8, "a buffer").err().unwrap().status, Status::EngineDead);
    // Other errors do not lose the device.
    let other = self::device().unwrap();
    emulated.fail(c"cuMemAlloc_v2", 1);
    assert!(Buffer::new(&other, 8, "a buffer").is_err());
    assert!(Buffer::new(&other, 8, "a buffer").is_ok());
    drop((stream, device, unknown, other));
    emulated.reset();
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn an_image_that_a_driver_does_not_take_is_unsupported() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    emulated.fail(c"cuModuleLoadData", 222);
    let error = Module::load(&device, b"an image").err().unwrap();
    assert_eq!(error.status, Status::Unsupported);
    let words = "the kernels: cuda:0: the NVIDIA driver, for CUDA 13.0, does not take this image: ";
    assert!(error.message.starts_with(words), "{}", error.message);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_block_of_more_threads_than_a_kernel_takes_is_refused() {
    let _emulated = Emulated::new();
    let device = device().unwrap();
    let (module, stream) = (Module::load(&device, b"an image").unwrap(), Stream::new(&device).unwrap());
    let [x, y] = [(); 2].map(|()| Buffer::new(&device, 16, "a buffer").unwrap());
    add_by(256, &module, &stream, &x, &y).unwrap();
    let error = add_by(512, &module, &stream, &x, &y).unwrap_err();
    assert!(error.message.ends_with("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "{}", error.message);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn several_devices_are_listed_and_have_their_own_memory() {
    let emulated = Emulated::new();
    emulated.devices(3);
    emulated.memory(-1, 2000);
    emulated.memory(1, 1000);
    let driver = Arc::new(Driver::open(&library()).unwrap());
    assert_eq!(Device::count(&driver).unwrap(), 3);
    let bytes: Vec<usize> = Device::list(&driver).unwrap().iter().map(|facts| facts.total_bytes).collect();
    assert_eq!(bytes, [2000, 1000, 2000]);
    let [first, second] = [0, 1].map(|number| Device::open(driver.clone(), number).unwrap());
    let buffers = [&first, &second].map(|device| Buffer::new(device, 600, "a buffer").unwrap());
    assert_eq!([first.free_bytes().unwrap(), second.free_bytes().unwrap()], [1400, 400]);
    assert_eq!(Buffer::new(&second, 600, "a buffer").err().unwrap().status, Status::OutOfMemory);
    for (buffer, value) in buffers.iter().zip([1, 2]) {
        let stream = Stream::new(&buffer.device).unwrap();
        buffer.fill(&stream, value).unwrap();
        assert_eq!(read(buffer, &stream), [value; 600]);
    }
    drop((buffers, first, second));
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn memory_of_another_device_ends_the_test() {
    ends(
        "devices::memory_of_another_device_ends_the_test",
        "memory of device 1 is used by a stream of device 0",
        || {
            let emulated = Emulated::new();
            emulated.devices(2);
            let [first, second] = [0, 1].map(|number| open(number).unwrap());
            let module = Module::load(&first, b"an image").unwrap();
            let [x, y] = [&first, &second].map(|device| Buffer::new(device, 16, "a buffer").unwrap());
            add(&module, &Stream::new(&first).unwrap(), &x, &y).unwrap();
        },
    );
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_thread_without_a_context_is_refused() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let driver = device.driver.clone();
    std::thread::spawn(move || {
        let mut address = 0;
        // SAFETY: an address to write.
        assert_eq!(unsafe { (driver.alloc)(&mut address, 8) }, 201);
        // Works on any thread, because it makes the context current itself.
        drop(Buffer::new(&device, 8, "a buffer").unwrap());
    })
    .join()
    .unwrap();
    assert_eq!(emulated.live(), 0);
}
