// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory through CRIU: every process ends, and after the restore no alias is lost and none is new.
//!
//! `STASIS_CRIU_GRAPHS=N` does N random graphs in each of two tests instead of 3.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use stasis::checkpoint::{Request, State, call};
use stasis_tests::criu;
use stasis_tests::plain_criu::{Plugins, dump, restore};
use stasis_tests::sample::setting;
use stasis_tests::sharer::Sharers;
use stasis_tests::sharer::graph::{Dice, Graph};
use stasis_tests::sharer::language::{Answer, Ask, By};
use stasis_tests::worker::{refused, succeeded, wait_until};

const DEVICE: &str = "soft:gfx1100,gfx1100";
const AGENTS: usize = 2;

fn has(on: &Sharers, worker: &str, fd: &str) -> bool {
    matches!(on.ask(worker, Ask::Descriptors), Answer::Descriptors(fds) if fds.contains_key(fd))
}

/// A buffer `x` of the root; all three have its DMABuf `f`, and `a` has a buffer `y` of it on the other agent.
fn start() -> Sharers {
    let on = Sharers::start(DEVICE, &["root", "a", "b"]);
    on.adopt();
    on.ask("root", Ask::Alloc { buffer: "x".into(), bytes: 1 << 20, agent: Some(0) });
    on.ask("root", Ask::Export { buffer: "x".into(), fd: "f".into() });
    for name in ["a", "b"] {
        on.ask("root", Ask::Send { fd: "f".into(), to: on.socket_of(name) });
        wait_until("the descriptor", || has(&on, name, "f"));
    }
    on.ask("a", Ask::Import { fd: "f".into(), buffer: "y".into(), agent: 1 });
    on
}

fn write(on: &Sharers, worker: &str, buffer: &str, byte: u8, by: By) {
    on.ask(worker, Ask::Write { buffer: buffer.into(), offset: 4096, bytes: vec![byte; 64], by });
}

fn shows(on: &Sharers, worker: &str, buffer: &str, byte: u8) {
    for by in [By::Cpu, By::Device] {
        let read = on.ask(worker, Ask::Read { buffer: buffer.into(), offset: 4096, bytes: 64, by });
        assert_eq!(read, Answer::Bytes(vec![byte; 64]), "{worker} {buffer} by {by:?}");
    }
}

/// Checks that all show `byte`, and that all others see what one writes; in the end they show `byte` again.
fn aliases_hold(on: &Sharers, byte: u8) {
    let has_root = on.names().iter().any(|name| name == "root");
    let all = |byte| {
        if has_root {
            shows(on, "root", "x", byte);
        }
        shows(on, "a", "y", byte);
        shows(on, "b", "z", byte);
    };
    on.ask("b", Ask::Import { fd: "f".into(), buffer: "z".into(), agent: 0 });
    all(byte);
    write(on, "b", "z", byte + 1, By::Device);
    all(byte + 1);
    write(on, "a", "y", byte, By::Cpu);
    all(byte);
    on.ask("b", Ask::Free { buffer: "z".into() });
}

fn all_run(on: &Sharers) {
    for name in on.names() {
        let state = call(on.pid(&name), &Request::Status, Duration::from_secs(60)).map(|(state, _)| state);
        assert!(matches!(state, Ok(State::Running)), "{name}: {state:?}");
    }
}

#[test]
fn tree_is_left_running_then_twice_frozen_moved_and_restored() {
    let on = start();
    write(&on, "root", "x", 7, By::Cpu);
    aliases_hold(&on, 7);
    succeeded(&on.checkpoint("root", &on.path("left"), &["--leave-running"]));
    aliases_hold(&on, 7);
    for generation in ["first", "second"] {
        let (images, moved) = (on.path(generation), on.path(&format!("{generation}-moved")));
        succeeded(&on.checkpoint("root", &images, &[]));
        on.bury();
        fs::rename(&images, &moved).unwrap();
        succeeded(&on.restore(&moved));
        aliases_hold(&on, 7);
    }
}

#[test]
fn plain_criu_with_the_plugin_keeps_every_alias() {
    let on = start();
    write(&on, "root", "x", 8, By::Device);
    let plugins = Plugins::ours();
    dump(on.pid("root"), &on.path("left"), &plugins, &["--leave-running"]).succeeded();
    aliases_hold(&on, 8);
    dump::<&str>(on.pid("root"), &on.path("images"), &plugins, &[]).succeeded();
    on.bury();
    fs::rename(on.path("images"), on.path("moved")).unwrap();
    restore(&on.path("moved"), &plugins).succeeded();
    aliases_hold(&on, 8);
}

/// Two trees that share memory whose exporter has ended.
fn orphans(byte: u8) -> Sharers {
    let mut on = start();
    write(&on, "root", "x", byte, By::Cpu);
    for name in ["a", "b"] {
        on.ask(name, Ask::Lead);
    }
    on.exit("root");
    aliases_hold(&on, byte);
    on
}

#[test]
fn session_of_two_trees_whose_exporter_ended_is_restored_in_both_orders_and_at_once() {
    let on = orphans(9);
    let trees = ["a", "b"].map(|name| on.pid(name).to_string());
    for generation in 0..3 {
        let (images, moved) = (on.path(&format!("s{generation}")), on.path(&format!("m{generation}")));
        succeeded(&on.checkpoint("a", &images, &["--session", &trees[1]]));
        on.bury();
        fs::rename(&images, &moved).unwrap();
        let back = |tree: &str| succeeded(&on.restore(&moved.join(tree)));
        match generation {
            0 => {
                back(&trees[0]);
                shows(&on, "a", "y", 9);
                back(&trees[1]);
            }
            1 => {
                back(&trees[1]);
                assert!(has(&on, "b", "f"));
                back(&trees[0]);
            }
            _ => drop(succeeded(&on.restore(&moved))),
        }
        aliases_hold(&on, 9);
    }
}

#[test]
fn whoever_holds_the_memory_outside_is_named_with_what_to_do() {
    let on = orphans(3);
    let (other, images) = (on.pid("b").to_string(), on.path("images"));
    let error = refused(&on.checkpoint("a", &images, &[]));
    assert!(error.contains(&format!("--session {other}")), "{error}");
    let error = refused(&on.checkpoint("a", &images, &["--no-preflight"]));
    assert!(error.contains(&format!("process {other} (share-worker) holds memory")), "{error}");
    assert!(!images.exists());
    all_run(&on);
    aliases_hold(&on, 3);
}

#[test]
fn dump_that_fails_for_the_second_tree_loses_nothing() {
    let on = orphans(5);
    let (other, script) = (on.pid("b").to_string(), on.path("criu"));
    let real = criu().display().to_string();
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec {real} --version\n\
         for word; do [ \"$word\" = {other} ] && exit 1; done\nexec {real} \"$@\"\n"
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let images = on.path("images");
    let error = refused(&on.checkpoint_by(&script, "a", &images, &["--session", &other]));
    let why = format!("tree of process {other} cannot be dumped");
    assert!(error.contains(&why) && error.contains("run on unharmed"), "{error}");
    wait_until("the first tree's return", || fs::metadata(format!("/proc/{}", on.pid("a"))).is_ok());
    all_run(&on);
    aliases_hold(&on, 5);
    succeeded(&on.checkpoint("a", &on.path("again"), &["--session", &other]));
    on.bury();
    succeeded(&on.restore(&on.path("again")));
    aliases_hold(&on, 5);
}

/// Checks that every alias shows what the others write, and that descriptors have their old numbers and flags.
fn graph_holds(on: &Sharers, graph: &mut Graph, dice: &mut Dice, change: impl FnOnce()) {
    let before = graph.descriptors(on);
    change();
    let after = graph.descriptors(on);
    assert!(before.keys().eq(after.keys()));
    for (held, seen) in &before {
        let now = after[held];
        assert_eq!((seen.number, seen.is_cloexec), (now.number, now.is_cloexec), "{held:?}");
    }
    graph.check(on, dice);
}

/// Random graphs of these seeds: in place, through CRIU, in place again.
fn through_criu(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        println!("seed {seed}");
        let mut on = Sharers::start(DEVICE, &["root", "a", "b"]);
        on.adopt();
        let (mut dice, mut graph) = (Dice::new(seed + 1), Graph::of_one_tree(seed));
        let steps = 12 + dice.roll(24);
        graph.grow(&mut on, &mut dice, steps, AGENTS);
        graph.check(&on, &mut dice);
        let round = |on: &mut Sharers| {
            if let Err(errors) = on.around(&on.names()) {
                panic!("seed {seed}: {errors:?}\n{}", on.log());
            }
        };
        round(&mut on);
        let criu = || {
            let (mut images, moved) = (on.path("images"), on.path("moved"));
            succeeded(&on.checkpoint("root", &images, &[]));
            on.bury();
            if seed % 2 == 0 {
                fs::rename(&images, &moved).unwrap();
                images = moved;
            }
            succeeded(&on.restore(&images));
        };
        graph_holds(&on, &mut graph, &mut dice, criu);
        // The restored processes share, end and go on as before.
        graph.grow(&mut on, &mut dice, 8, AGENTS);
        round(&mut on);
        graph_holds(&on, &mut graph, &mut dice, || {});
        graph.clear(&on);
    }
}

fn graphs() -> u64 {
    setting("STASIS_CRIU_GRAPHS").unwrap_or(3)
}

#[test]
fn random_graphs_stay_what_they_are_through_criu_first_half() {
    through_criu(0..graphs());
}

#[test]
fn random_graphs_stay_what_they_are_through_criu_second_half() {
    through_criu(500_000..500_000 + graphs());
}

#[test]
fn dmabuf_that_nobody_has_received_is_named_and_nothing_is_changed() {
    let mut on = start();
    write(&on, "root", "x", 6, By::Cpu);
    aliases_hold(&on, 6);
    on.ask("root", Ask::Dup { fd: "f".into(), to: "g".into() });
    on.ask("b", Ask::Deaf { until: on.path("listen") });
    on.ask("root", Ask::Send { fd: "g".into(), to: on.socket_of("b") });
    let images = on.path("images");
    for more in [&[][..], &["--no-preflight"]] {
        let error = refused(&on.checkpoint("root", &images, more));
        assert!(error.contains("waits in the queue of socket fd"), "{error}");
        assert!(!images.exists());
    }
    let errors = on.around(&on.names()).unwrap_err();
    let errors = format!("{errors:?}");
    assert!(errors.contains("waits in the queue of socket fd"), "{errors}");
    all_run(&on);
    shows(&on, "root", "x", 6);
    shows(&on, "a", "y", 6);
    fs::write(on.path("listen"), "").unwrap();
    wait_until("the descriptor", || has(&on, "b", "g"));
    aliases_hold(&on, 6);
    succeeded(&on.checkpoint("root", &images, &[]));
    on.bury();
    succeeded(&on.restore(Path::new(&images)));
    assert!(has(&on, "b", "g"));
    aliases_hold(&on, 6);
}
