//! A forked child cannot use its parent's engines, and gets an error. This is a program of its own, because only this
//! thread survives the fork.
#![cfg(unix)]
use bn::{Engine, EngineOptions, ErrorKind, Model, Request};

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

fn child(engine: &Engine, stream: &mut bn::Stream, model: &Model) -> bool {
    let event = stream.recv().unwrap();
    let refused = |kind| kind == ErrorKind::Forked;
    refused(event.finish.unwrap().error.unwrap().kind())
        && stream.recv().is_none()
        && refused(engine.stats().unwrap_err().kind())
        && refused(engine.generate(&Request::prompt("x")).unwrap_err().kind())
        && model.tokenize("a", bn::Tokenize::default()).is_ok()
        && {
            let options = EngineOptions { model: Some(model.clone()), ..EngineOptions::default() };
            Engine::new(options).unwrap().generate(&Request::prompt("own")).unwrap().text == "own"
        }
}

#[test]
fn a_forked_child_is_told() {
    let engine =
        Engine::new(EngineOptions { model_path: Some("builtin:echo".into()), ..EngineOptions::default() })
            .unwrap();
    let model = engine.model();
    engine.pause().unwrap(); // so that nothing waits in the stream
    let mut stream = engine.submit(&Request::prompt("of the parent")).unwrap();
    // SAFETY: the child calls the library, which is made for that, and ends without the harness.
    unsafe {
        let process = fork();
        if process == 0 {
            let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                child(&engine, &mut stream, &model)
            }));
            drop((stream, engine));
            _exit(if matches!(right, Ok(true)) { 0 } else { 1 });
        }
        let mut status = -1;
        assert_eq!((waitpid(process, &mut status, 0), status), (process, 0));
    }
    engine.resume().unwrap();
    assert_eq!(stream.answer().text, "of the parent");
}
