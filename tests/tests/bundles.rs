// SPDX-License-Identifier: MIT OR Apache-2.0
//! Offload bundles: each agent loads its own entry of one file, whose entries store different numbers; a checkpoint keeps
//! that entry, and `stasis dispatch` takes such files.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use stasis::checkpoint::Mode;
use stasis::code_object::BundleError;
use stasis::{Agent, Arg, CodeObjectError, Executable, LoadError, Queue, QueueOptions, Runtime, Signal};
use stasis_tests::gpu::{SOON, open_on, skip_on_kernel_driver};
use stasis_tests::shell::Shell;
use stasis_tests::worker::refused;

/// By LLVM's own tool; see the README beside them.
const PLAIN: &[u8] = include_bytes!("../../runtime/src/code_object/bundle/golden/plain.hipfb");
const ZSTD: &[u8] = include_bytes!("../../runtime/src/code_object/bundle/golden/zstd.hipfb");
const CHIPS: &str = "it is about several kinds of software GPUs";

/// What the entry that an agent has loaded stores.
fn marked(runtime: &Runtime, executable: &Executable) -> i32 {
    let (agent, kernel) = (executable.agent(), executable.kernel("mark").unwrap());
    let (mark, done) = (agent.vram().upload(&[0i32]).unwrap(), Signal::new(runtime, 1).unwrap());
    let queue = Queue::create(agent, QueueOptions::default()).unwrap();
    queue.dispatch(&kernel).grid([1, 1, 1]).args(&[Arg::from(&mark)]).completion(&done).submit().unwrap();
    done.wait_done(SOON).unwrap();
    mark.download().unwrap()[0]
}

#[test]
fn each_agent_runs_its_own_entry_of_one_file() {
    if skip_on_kernel_driver(CHIPS) {
        return;
    }
    let runtime = open_on("soft:gfx1100,gfx1101,gfx1201", None);
    let agents: Vec<Agent> = runtime.agents();
    for file in [PLAIN, ZSTD] {
        let loaded = [0, 1].map(|agent| Executable::load(&agents[agent], file).unwrap());
        let targets = loaded.each_ref().map(|executable| executable.object().isa().to_string());
        assert_eq!(targets, ["gfx1100", "gfx11-generic"]);
        assert_eq!(loaded.map(|executable| marked(&runtime, &executable)), [1, 4]);
        let error = Executable::load(&agents[2], file).unwrap_err();
        let LoadError::CodeObject(CodeObjectError::Bundle(BundleError::NoCode { agent, found })) = &error
        else {
            panic!("{error}")
        };
        assert_eq!((&**agent, found.len()), ("gfx1201", 5));
    }
}

#[test]
fn loaded_entry_is_what_a_checkpoint_keeps() {
    if skip_on_kernel_driver(CHIPS) {
        return;
    }
    let runtime = open_on("soft:gfx1101", None);
    let executable = Executable::load(&runtime.agent(0).unwrap(), ZSTD).unwrap();
    let directory = tempfile::tempdir().unwrap();
    runtime.lock(Mode::Drain, Duration::from_secs(60)).unwrap();
    runtime.checkpoint(directory.path()).unwrap();
    runtime.restore(None).unwrap();
    runtime.unlock().unwrap();
    assert_eq!(marked(&runtime, &executable), 4);
}

#[test]
fn dispatch_runs_the_agents_entry_and_lists_the_first() {
    if skip_on_kernel_driver(CHIPS) {
        return;
    }
    let shell = Shell::new();
    fs::write(shell.path("mark.hipfb"), ZSTD).unwrap();
    // A software device is of one kind: each kind has an instance of its own.
    let on = |device: &str, line: &str| {
        let instance = format!("bundles-{}-{device}", std::process::id());
        let mut command = shell.command(line);
        command.env("STASIS_DEVICE", format!("soft:{device}")).env("STASIS_SOFTGPU_INSTANCE", instance);
        command.output().unwrap()
    };
    for (device, mark) in [("gfx1100", 1i32), ("gfx1101", 4)] {
        let line = "dispatch mark.hipfb --grid 1 --block 1 --arg out:i32[1] --save 0=mark.bin --json";
        let output = on(device, line);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read(shell.path("mark.bin")).unwrap(), mark.to_le_bytes(), "{device}");
    }
    let line = "dispatch mark.hipfb --grid 1 --block 1 --arg out:i32[1]";
    let error = refused(&on("gfx1201", line));
    assert!(error.contains("no code for gfx1201") && error.contains("gfx90a:sramecc+:xnack-"), "{error}");

    // Nothing is run: no device is asked.
    let listing = shell.command("dispatch mark.hipfb").env("STASIS_DEVICE", "none").output().unwrap();
    let text = String::from_utf8_lossy(&listing.stdout);
    assert!(
        text.contains("1 kernel for gfx11-generic\nof entry hipv4-amdgcn-amd-amdhsa--gfx11-generic of"),
        "{text}"
    );
    assert!(
        text.contains("a bundle of 5: host-x86_64-unknown-linux-gnu-, ") && text.contains("\nmark: "),
        "{text}"
    );
    let listing = shell.dispatch("mark.hipfb --disassemble");
    assert!(listing.starts_with("mark for gfx11-generic: "), "{listing}");
    fs::write(shell.path("cut.hipfb"), &ZSTD[..ZSTD.len() - 1]).unwrap();
    let error = shell.refused("cut.hipfb");
    assert!(error.contains("cut.hipfb") && error.contains("compressed offload bundle"), "{error}");
}
