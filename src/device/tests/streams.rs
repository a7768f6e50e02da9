use super::*;

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn work_is_done_when_it_is_waited_for() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let stream = Stream::new(&device).unwrap();
    let buffer = Buffer::new(&device, 4, "a buffer").unwrap();
    let pinned = Pinned::new(&device, 8, "staging").unwrap();
    assert_eq!(pinned[..], [0; 8]);
    let data = pinned.as_ptr();
    buffer.fill(&stream, 7).unwrap();
    let copying = buffer.read_to(&stream, 1, pinned, 2..5).unwrap();
    buffer.fill(&stream, 8).unwrap();
    // SAFETY: no other thread has it.
    assert_eq!(unsafe { data.add(2).read_volatile() }, 0, "nobody has waited");
    assert_eq!(copying.wait().unwrap()[..], [0, 0, 7, 7, 7, 0, 0, 0]);
    assert_eq!(read(&buffer, &stream), [8; 4]);
    drop((buffer, stream, device));
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn pageable_memory_is_read_at_the_call_and_pinned_memory_later() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let (stream, driver) = (Stream::new(&device).unwrap(), &device.driver);
    let buffer = Buffer::new(&device, 4, "a buffer").unwrap();
    let (mut pageable, to) = ([1_u8, 2], buffer.address(0).unwrap());
    // SAFETY: within the buffer.
    let write = || unsafe { (driver.write)(to, pageable.as_ptr().cast(), 2, stream.handle) };
    device.run("a copy", write).unwrap();
    pageable.fill(0);
    let mut pinned = Pinned::new(&device, 2, "staging").unwrap();
    pinned.copy_from_slice(&[3, 4]);
    let data = pinned.as_mut_ptr();
    let copying = buffer.write_from(&stream, 2, pinned, 0..2).unwrap();
    // `Copying` keeps its owner from doing this. SAFETY: no other thread has it.
    unsafe { data.write_volatile(5) };
    assert_eq!(read(&buffer, &stream), [1, 2, 5, 4]);
    drop((copying, buffer, stream, device));
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn bytes_that_are_copied_outlive_what_their_owner_drops() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let stream = Stream::new(&device).unwrap();
    let [from, to] = [3, 0].map(|value| {
        let buffer = Buffer::new(&device, 64, "a buffer").unwrap();
        buffer.fill(&stream, value).unwrap();
        buffer
    });
    let read_back = from.read_to(&stream, 0, Pinned::new(&device, 64, "staging").unwrap(), 0..64).unwrap();
    drop(from);
    assert_eq!(read_back.wait().unwrap()[..], [3; 64]);
    let mut pinned = Pinned::new(&device, 64, "staging").unwrap();
    pinned.fill(9);
    drop(to.write_from(&stream, 0, pinned, 0..64).unwrap());
    assert_eq!(read(&to, &stream), [9; 64]);
    drop((to, stream, device));
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_copy_that_cannot_be_is_an_error_and_leaves_nothing() {
    let emulated = Emulated::new();
    emulated.devices(2);
    let [device, other] = [0, 1].map(|number| open(number).unwrap());
    let stream = Stream::new(&device).unwrap();
    let buffer = Buffer::new(&device, 8, "a buffer").unwrap();
    let pinned = |device| Pinned::new(device, 8, "staging").unwrap();
    for error in [
        buffer.write_from(&stream, 4, pinned(&device), 0..5).err().unwrap(),
        buffer.read_to(&stream, 0, pinned(&device), 4..9).err().unwrap(),
        buffer.read_to(&stream, usize::MAX, pinned(&device), 0..2).err().unwrap(),
        buffer.read_to(&stream, 0, pinned(&other), 0..8).err().unwrap(),
    ] {
        assert_eq!(error.status, Status::Internal, "{error:?}");
    }
    assert_eq!(buffer.read_to(&stream, 8, pinned(&device), 8..8).unwrap().wait().unwrap()[..], [0; 8]);
    emulated.fail(c"cuEventRecord", 1);
    assert!(buffer.read_to(&stream, 0, pinned(&device), 0..8).is_err());
    emulated.fail(c"cuMemHostAlloc", 2);
    let error = Pinned::new(&device, 8, "staging").err().unwrap();
    assert_eq!(error.status, Status::OutOfMemory);
    assert_eq!(error.message, "could not allocate 8 bytes for staging in page-locked memory");
    assert!(Pinned::new(&device, 0, "nothing").unwrap().is_empty());
    drop((buffer, stream, device, other));
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn an_event_stands_behind_what_was_given_before_it() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let [first, second] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let [a, b] = [(); 2].map(|()| Buffer::new(&device, 4, "a buffer").unwrap());
    let event = Event::new(&device).unwrap();
    assert!(event.is_done().unwrap(), "it was never recorded");
    a.fill(&first, 1).unwrap();
    first.synchronize().unwrap();
    a.fill(&first, 2).unwrap();
    // Nothing orders two streams: here the second finishes before the first.
    a.copy(&second, 0, &b, 0, 4).unwrap();
    assert_eq!(read(&b, &second), [1; 4]);
    event.record(&first).unwrap();
    a.fill(&first, 3).unwrap();
    second.wait_for(&event).unwrap();
    a.copy(&second, 0, &b, 0, 4).unwrap();
    assert_eq!(read(&b, &second), [2; 4]);
    assert!(event.is_done().unwrap());
    event.record(&first).unwrap();
    assert_eq!([event.is_done().unwrap(), event.is_done().unwrap()], [false, true]);
    assert_eq!(read(&a, &second), [3; 4]);
    a.fill(&first, 4).unwrap();
    event.record(&first).unwrap();
    event.wait().unwrap();
    assert_eq!(read(&a, &second), [4; 4]);
    drop((a, b, event, first, second, device));
    assert_eq!(emulated.live(), 0);
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn calls_are_counted() {
    let emulated = Emulated::new();
    let device = device().unwrap();
    let (module, stream) = (Module::load(&device, b"an image").unwrap(), Stream::new(&device).unwrap());
    let [x, y] = [(); 2].map(|()| Buffer::new(&device, 16, "a buffer").unwrap());
    let before = emulated.counts();
    y.write(&stream, 0, &floats(&[1.0; 4])).unwrap();
    x.fill(&stream, 0).unwrap();
    add(&module, &stream, &x, &y).unwrap();
    add(&module, &stream, &x, &y).unwrap();
    let pinned = Pinned::new(&device, 16, "staging").unwrap();
    let pinned = x.read_to(&stream, 0, pinned, 0..16).unwrap().wait().unwrap();
    assert_eq!(pinned[..], floats(&[2.0; 4]));
    // A write that waits, and the wait for the copy.
    let counts = Counts { launches: 2, writes: 1, reads: 1, synchronizations: 2, graph_launches: 0 };
    assert_eq!(emulated.counts() - before, counts);
    drop((pinned, x, y, module, stream, device));
    assert_eq!(emulated.live(), 0);
}
