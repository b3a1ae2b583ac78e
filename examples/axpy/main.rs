// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first program: `axpy.co` from the working directory, run over two arrays. It is the example of the README and of the
//! crate's documentation, word for word (`tests/tests/readme.rs`).
#![forbid(unsafe_code)]

use stasis::{Arg, Executable, Queue, QueueOptions, Runtime, Signal};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::open_default()?;
    let agent = runtime.agent(0).ok_or("no agent")?;
    let axpy = Executable::load(&agent, &std::fs::read("axpy.co")?)?.kernel("axpy")?;
    let numbers: Vec<f32> = (0..1024u16).map(f32::from).collect();
    let (x, y) = (agent.vram().upload(&numbers)?, agent.vram().upload(&[1.0f32; 1024])?);
    let (queue, done) = (Queue::create(&agent, QueueOptions::default())?, Signal::new(&runtime, 1)?);
    let arguments = [Arg::from(&x), Arg::from(&y), Arg::F32(2.0), Arg::U32(1024)];
    let dispatch = queue.dispatch(&axpy).grid([1024, 1, 1]).block([256, 1, 1]).args(&arguments);
    dispatch.completion(&done).submit()?;
    done.wait_done(None)?;
    let expected: Vec<f32> = numbers.iter().map(|x| 2.0 * x + 1.0).collect();
    assert_eq!(y.download()?, expected);
    Ok(())
}
