use super::*;

/// The setup of a test of graphs; y is [1, 2, 3, 4].
struct Bench {
    emulated: Emulated,
    device: Arc<Device>,
    module: Arc<Module>,
    stream: Stream,
    x: Buffer,
    y: Buffer,
}

impl Bench {
    fn new() -> Self {
        let emulated = Emulated::new();
        let device = device().unwrap();
        let (module, stream) = (Module::load(&device, b"an image").unwrap(), Stream::new(&device).unwrap());
        let [x, y] = [(); 2].map(|()| Buffer::new(&device, 16, "a buffer").unwrap());
        x.fill(&stream, 0).unwrap();
        y.write(&stream, 0, &floats(&[1.0, 2.0, 3.0, 4.0])).unwrap();
        Self { emulated, device, module, stream, x, y }
    }

    fn add(&self) {
        add(&self.module, &self.stream, &self.x, &self.y).unwrap();
    }

    /// A graph that adds y to x `times` times.
    fn graph(&self, times: usize) -> Graph {
        let capture = self.stream.capture().unwrap();
        (0..times).for_each(|_| self.add());
        capture.end().unwrap()
    }

    fn x(&self) -> Vec<u8> {
        read(&self.x, &self.stream)
    }

    /// Drops everything and checks that nothing is left.
    fn end(self) {
        let Self { emulated, device, module, stream, x, y } = self;
        drop((device, module, stream, x, y));
        assert_eq!(emulated.live(), 0);
    }
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_graph_does_what_was_captured_at_each_launch() {
    let bench = Bench::new();
    let before = bench.emulated.counts();
    let mut graph = bench.graph(2);
    assert_eq!(bench.emulated.counts() - before, Counts::default());
    assert_eq!(bench.x(), floats(&[0.0; 4]), "a capture does nothing");
    let before = bench.emulated.counts();
    // SAFETY: everything that was captured lives.
    (0..2).for_each(|_| unsafe { graph.launch(&bench.stream) }.unwrap());
    assert_eq!(bench.emulated.counts() - before, Counts { graph_launches: 2, ..Counts::default() });
    assert_eq!(bench.x(), floats(&[4.0, 8.0, 12.0, 16.0]));
    // A launch uses the contents of memory at that time, after earlier work of its stream.
    bench.y.fill(&bench.stream, 0).unwrap();
    bench.x.fill(&bench.stream, 0).unwrap();
    // SAFETY: as above.
    unsafe { graph.launch(&bench.stream) }.unwrap();
    // A graph that is dropped still completes its launches.
    drop(graph);
    assert_eq!(bench.x(), floats(&[0.0; 4]));
    bench.end();
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_capture_that_is_dropped_ends() {
    let bench = Bench::new();
    let live = bench.emulated.live();
    let capture = bench.stream.capture().unwrap();
    assert!(bench.stream.capture().err().unwrap().message.contains("CUDA_ERROR_ILLEGAL_STATE"));
    bench.add();
    drop(capture);
    assert_eq!((bench.emulated.live(), bench.x()), (live, floats(&[0.0; 4])));
    bench.add();
    assert_eq!(bench.x(), floats(&[1.0, 2.0, 3.0, 4.0]));
    bench.end();
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn what_a_capture_forbids_is_refused_and_spoils_it() {
    let bench = Bench::new();
    let (device, stream) = (&bench.device, &bench.stream);
    let other = Stream::new(device).unwrap();
    let (event, outside) = (Event::new(device).unwrap(), Event::new(device).unwrap());
    outside.record(&other).unwrap();
    let forbidden: [(&str, &dyn Fn() -> Result<()>); 8] = [
        ("STREAM_CAPTURE_UNSUPPORTED", &|| stream.synchronize()),
        ("STREAM_CAPTURE_UNSUPPORTED", &|| other.synchronize()),
        ("STREAM_CAPTURE_UNSUPPORTED", &|| outside.wait()),
        ("STREAM_CAPTURE_UNSUPPORTED", &|| event.is_done().map(drop)),
        ("STREAM_CAPTURE_UNSUPPORTED", &|| Buffer::new(device, 8, "a buffer").map(drop)),
        ("STREAM_CAPTURE_UNSUPPORTED", &|| Pinned::new(device, 8, "staging").map(drop)),
        ("STREAM_CAPTURE_UNSUPPORTED", &|| Module::load(device, b"an image").map(drop)),
        ("STREAM_CAPTURE_ISOLATION", &|| stream.wait_for(&outside)),
    ];
    let live = bench.emulated.live();
    for (number, (code, call)) in forbidden.iter().enumerate() {
        let capture = stream.capture().unwrap();
        event.record(stream).unwrap();
        stream.wait_for(&event).unwrap();
        let error = call().unwrap_err();
        assert!(error.message.contains(code), "{number}: {error:?}");
        let error = add(&bench.module, stream, &bench.x, &bench.y).unwrap_err();
        assert!(error.message.contains("STREAM_CAPTURE_INVALIDATED"), "{number}: {error:?}");
        let error = capture.end().err().unwrap();
        assert!(error.message.contains("STREAM_CAPTURE_INVALIDATED"), "{number}: {error:?}");
        assert_eq!(bench.emulated.live(), live, "{number}");
    }
    assert!(event.wait().unwrap_err().message.contains("CUDA_ERROR_CAPTURED_EVENT"));
    drop((other, event, outside));
    bench.end();
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn copies_for_the_host_are_refused_in_a_capture_which_goes_on() {
    let bench = Bench::new();
    let [to, from] = [(); 2].map(|()| Pinned::new(&bench.device, 0, "staging").unwrap());
    let capture = bench.stream.capture().unwrap();
    for error in [
        bench.x.write(&bench.stream, 0, &[0]).unwrap_err(),
        bench.x.read(&bench.stream, 0, &mut [0]).unwrap_err(),
        bench.x.write_from(&bench.stream, 0, from, 0..0).err().unwrap(),
        bench.x.read_to(&bench.stream, 0, to, 0..0).err().unwrap(),
    ] {
        assert_eq!(error.message, "a copy to or from the host within a capture");
    }
    bench.add();
    // Other threads are not restricted by this thread's capture.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let buffer = Buffer::new(&bench.device, 8, "a buffer").unwrap();
            let stream = Stream::new(&bench.device).unwrap();
            buffer.write(&stream, 0, &[1; 8]).unwrap();
            assert_eq!(read(&buffer, &stream), [1; 8]);
        });
    });
    // SAFETY: everything that was captured lives.
    unsafe { capture.end().unwrap().launch(&bench.stream) }.unwrap();
    assert_eq!(bench.x(), floats(&[1.0, 2.0, 3.0, 4.0]));
    bench.end();
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_graph_that_is_refused_leaves_nothing() {
    let bench = Bench::new();
    let live = bench.emulated.live();
    let capture = bench.stream.capture().unwrap();
    bench.add();
    bench.emulated.fail(c"cuGraphInstantiateWithFlags", 2);
    assert_eq!(capture.end().err().unwrap().status, Status::OutOfMemory);
    assert_eq!(bench.emulated.live(), live);
    bench.end();
}

#[test]
#[ignore = "needs the emulated driver: make test-cuda"]
fn a_graph_whose_memory_was_freed_ends_the_test() {
    ends(
        "graphs::a_graph_whose_memory_was_freed_ends_the_test",
        "memory that is not allocated is used",
        || {
            let mut bench = Bench::new();
            let mut graph = bench.graph(1);
            bench.x = Buffer::new(&bench.device, 16, "another buffer").unwrap();
            // The contract forbids this, and the emulated driver detects it.
            unsafe { graph.launch(&bench.stream) }.unwrap();
        },
    );
}
