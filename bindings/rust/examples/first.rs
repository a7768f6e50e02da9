//! Prints the answer to a prompt as it arrives.
use bn::{Engine, EngineOptions, Request};
use std::io::{Write, stdout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).map(Into::into); // none: the model inside the library
    let engine = Engine::new(EngineOptions { model_path: path, ..EngineOptions::default() })?;
    let mut stream = engine.submit(&Request::prompt("17+25="))?;
    while let Some(event) = stream.recv() {
        print!("{}", event.text);
        stdout().flush()?;
        if let Some(finish) = event.finish {
            eprintln!("\n{}: {} tokens", finish.reason, finish.usage.generated_tokens);
        }
    }
    Ok(())
}
