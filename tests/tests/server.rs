// SPDX-License-Identifier: MIT OR Apache-2.0
//! The embedding server, frozen under traffic: every answer is right, and requests without an answer are answered after
//! the thaw.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use stasis::checkpoint::{Done, Request, call};
use stasis_tests::gpu::on_a_future_kernel;
use stasis_tests::server::{Client, Known, Server, Traffic, namespace_of_child};
use stasis_tests::worker::{is_alive, kill, succeeded, wait_until};
use stasis_tests::{criu, program};

const CLIENTS: usize = 8;

/// The options for the clients' connections, and whether they are kept: that needs a way to hold back packets from a
/// frozen process.
fn connections() -> (&'static str, bool) {
    let check = Command::new(criu()).args(["check", "--feature", "network_lock_nftables"]).output().unwrap();
    match check.status.success() {
        true => ("--tcp-established", true),
        false => {
            println!("connections are reset here: {}", String::from_utf8_lossy(&check.stdout).trim());
            ("--tcp-close", false)
        }
    }
}

#[test]
fn frozen_in_mid_traffic_it_answers_every_request_once_and_rightly() {
    let mut server = Server::start(&[]);
    let known = Known::of(&server.client());
    let (option, kept) = connections();
    let traffic = Traffic::default();
    let before = server.client().metric("embed_embeddings_total").unwrap();
    std::thread::scope(|scope| {
        for n in 0..CLIENTS {
            let (traffic, known, address) = (&traffic, &known, server.address);
            scope.spawn(move || traffic.drive(address, known, n));
        }
        traffic.wait_for(40);
        succeeded(&server.process.checkpoint("images", &[option]));
        server.bury();
        let (at_freeze, device) = (traffic.answered(), server.process.devices());
        assert!(device.is_empty(), "{device:?}");
        succeeded(&server.process.restore("images"));
        traffic.wait_for(40);
        traffic.stop();
        assert!(traffic.answered() > at_freeze);
    });
    if kept {
        assert_eq!(traffic.broken(), 0, "a connection broke though it was to be kept");
        // Each request has two sentences, and none was embedded twice.
        let embedded = server.client().metric("embed_embeddings_total").unwrap() - before;
        assert!((embedded - 2.0 * traffic.answered() as f64).abs() < 0.5, "{embedded} {traffic:?}");
    }
    server.finish();
}

/// A batch of some seconds on a busy machine.
fn long_texts() -> Vec<String> {
    (0..60).map(|n| format!("{} {n}", "the thaw comes slowly to the high valleys ".repeat(3))).collect()
}

/// Packets that a process's queues have not consumed.
fn pending(pid: i32) -> u64 {
    match call(pid, &Request::Info, Duration::from_secs(60)).unwrap().1 {
        Done::Info(info) => {
            info.objects.iter().flat_map(|all| &all.queues).filter_map(|queue| queue.pending).sum()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn stopped_in_the_middle_of_a_long_batch_it_goes_on_there() {
    on_a_future_kernel();
    let mut server = Server::start(&[]);
    let client = server.client();
    let long = long_texts();
    let undisturbed = client.ask(&long).unwrap();
    let (option, kept) = connections();
    let batches = client.metric("embed_batch_tokens_count").unwrap();
    let answer = std::thread::scope(|scope| {
        let (asking, long) = (client.clone(), &long);
        let asked = scope.spawn(move || asking.ask(long));
        wait_until("the batch to begin", || pending(server.process.pid()) > 0);
        let outcome = succeeded(&server.process.checkpoint("images", &["--preempt", option]));
        println!("{outcome}");
        server.bury();
        succeeded(&server.process.restore("images"));
        asked.join().unwrap()
    });
    match answer {
        Ok(answer) => assert_eq!(answer, undisturbed),
        Err(error) => assert!(!kept, "{error}"),
    }
    let batches = client.metric("embed_batch_tokens_count").unwrap() - batches;
    assert!(batches < 1.5, "the batch was embedded {batches} times");
    assert_eq!(server.client().ask(&long).unwrap(), undisturbed);
    server.finish();
}

#[test]
fn two_agents_share_the_work_before_and_after() {
    let mut server = Server::start_on(Some("soft:gfx1100*2"), &[]);
    let known = Known::of(&server.client());
    let (option, _) = connections();
    let busy = |agent: usize| format!("embed_agent_busy_seconds_total{{agent=\"{agent}\"}}");
    let both = |server: &Server| [0, 1].map(|agent| server.client().metric(&busy(agent)).unwrap());
    let traffic = Traffic::default();
    std::thread::scope(|scope| {
        for n in 0..CLIENTS {
            let (traffic, known, address) = (&traffic, &known, server.address);
            scope.spawn(move || traffic.drive(address, known, n));
        }
        wait_until("work on both agents", || both(&server).iter().all(|seconds| *seconds > 0.0));
        succeeded(&server.process.checkpoint("images", &[option]));
        server.bury();
        succeeded(&server.process.restore("images"));
        let thawed = both(&server);
        wait_until("more work on both", || both(&server).iter().zip(thawed).all(|(now, then)| *now > then));
        traffic.stop();
    });
    server.finish();
}

#[test]
fn ten_freezes_in_a_row_change_no_bit() {
    let mut server = Server::start(&[]);
    let known = Known::of(&server.client());
    let (option, _) = connections();
    let kept = server.client();
    for generation in 0..10 {
        let name = format!("images-{generation}");
        succeeded(&server.process.checkpoint(&name, &[option]));
        server.bury();
        succeeded(&server.process.restore(&name));
        fs::remove_dir_all(server.path(&name)).unwrap();
        // A connection since the last restore, and one from before, which may have been reset.
        known.check(&server.client(), generation).unwrap();
        known.check(&kept, generation + 7).or_else(|_| known.check(&kept, generation + 7)).unwrap();
    }
    server.finish();
}

/// Kills the executor of a server's software device.
fn lose_device(server: &Server) {
    let served = server.process.devices();
    assert!(served.len() >= 2, "an executor and a broker: {served:?}");
    kill(served[0]);
}

#[test]
fn lost_device_is_opened_again_in_the_same_process_which_freezes_as_before() {
    let mut server = Server::start(&["--on-device-lost=reopen"]);
    let known = Known::of(&server.client());
    let (client, long) = (server.client(), long_texts());
    let in_flight = std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.status(&long));
        wait_until("the batch to begin", || pending(server.process.pid()) > 0);
        lose_device(&server);
        asked.join().unwrap()
    });
    assert_eq!(in_flight, Some(503), "a request in flight at the loss");
    // Between the loss and the new device every probe is answered, or its connection ended with the old process image. Health
    // may still be 200 between the batch's failure and the worker's report of it: only a request that succeeds ends the wait.
    let mut seen = Vec::new();
    wait_until("health", || {
        seen.extend(server.client().health());
        seen.last() == Some(&200) && server.client().status(&["are you there?".to_owned()]) == Some(200)
    });
    known.check(&server.client(), 0).unwrap();
    seen.dedup();
    println!("health was {seen:?}");
    assert!(seen.contains(&503), "{seen:?}");
    assert!(seen.iter().all(|status| [200, 503].contains(status)), "{seen:?}");
    assert!(server.client().metric("embed_device_reopened_total").unwrap() > 0.5);
    for number in 0..24 {
        known.check(&server.client(), number).unwrap();
    }

    let (option, _) = connections();
    succeeded(&server.process.checkpoint("images", &[option]));
    server.bury();
    succeeded(&server.process.restore("images"));

    known.check(&server.client(), 7).unwrap();
    // And once more, after the restart.
    lose_device(&server);
    wait_until("a second device", || {
        server.client().health() == Some(200)
            && server.client().metric("embed_device_reopened_total").is_ok_and(|times| times > 1.5)
    });
    known.check(&server.client(), 8).unwrap();
    server.finish();
}

#[test]
fn lost_device_ends_the_server_by_name_unless_told_otherwise() {
    let server = Server::start(&[]);
    assert_eq!(server.client().health(), Some(200));

    lose_device(&server);

    wait_until("the server's end", || !server.process.is_alive());
    let log = server.process.log();
    assert!(log.contains("the device was lost: the server ends"), "{log}");
    assert!(!server.is_open());
}

#[test]
fn time_frozen_is_not_the_clients() {
    let limit = Duration::from_secs(16);
    let seconds = limit.as_secs().to_string();
    let options = ["--header-timeout-s", &seconds, "--idle-timeout-s", &seconds];
    let mut server = Server::start(&options);
    let (option, kept) = connections();
    let mut idle = TcpStream::connect(server.address).unwrap();
    let mut half = TcpStream::connect(server.address).unwrap();
    for stream in [&idle, &half] {
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    }
    let (head, rest) = ("GET /health HTTP/1.1\r\nhost: a\r\nx-half:", "1\r\n\r\n");
    write!(idle, "{head}{rest}").unwrap();
    assert!(first_line(&mut idle).ends_with(" 200 OK"));
    half.write_all(head.as_bytes()).unwrap();

    succeeded(&server.process.checkpoint("images", &[option]));
    server.bury();
    std::thread::sleep(limit);
    succeeded(&server.process.restore("images"));

    if kept {
        half.write_all(rest.as_bytes()).unwrap();
        assert!(first_line(&mut half).ends_with(" 200 OK"), "half a request used up its time");
        write!(idle, "{head}{rest}").unwrap();
        assert!(first_line(&mut idle).ends_with(" 200 OK"), "an idle connection used up its time");
    }
    assert_eq!(server.client().health(), Some(200));
    server.finish();
}

/// The first line of a response that one read brings whole.
fn first_line(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 4096];
    let length = stream.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..length]).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn two_servers_come_of_one_image() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can make namespaces here");
        return;
    }
    let server = Server::start(&[]);
    let known = Known::of(&server.client());
    succeeded(&server.process.checkpoint("images", &["--leave-running", "--tcp-close"]));
    let mut command = Command::new(program("stasis"));
    command.args(["restore", "--beside"]).arg(server.path("images")).env("STASIS_CRIU", criu());
    let mut copy =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let namespace = namespace_of_child(copy.id());
    let address = server.address;
    std::thread::scope(|scope| {
        let (known, namespace) = (&known, &namespace);
        // A thread that enters the copy's network; its sockets stay there.
        let second = scope.spawn(move || {
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let client = Client::new(address);
            wait_until("the second server", || known.check(&client, 0).is_ok());
            for n in 1..20 {
                known.check(&client, n).unwrap();
            }
        });
        let client = server.client();
        for n in 0..20 {
            known.check(&client, n).unwrap();
        }
        second.join().unwrap();
    });
    copy.kill().unwrap();
    copy.wait().unwrap();
    known.check(&server.client(), 3).unwrap();
    server.finish();
}

/// Whether the server answers, now or soon; `false` if it has ended.
fn answers(server: &Server, known: &Known) -> bool {
    let mut answered = false;
    wait_until("an answer or an end", || {
        answered = known.check(&server.client(), 0).is_ok();
        answered || !is_alive(server.process.pid())
    });
    answered
}

#[test]
fn controller_killed_at_any_time_leaves_a_server_or_an_image() {
    let mut server = Server::start(&[]);
    let known = Known::of(&server.client());
    let mut last = None;
    for attempt in 0..8u64 {
        let name = format!("images-{attempt}");
        let mut command = Command::new(program("stasis"));
        command.arg("checkpoint").arg(server.process.pid().to_string()).arg(server.path(&name));
        command.env("STASIS_CRIU", criu()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut controller = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(attempt * attempt * 12));
        kill(controller.id().cast_signed());
        controller.wait().unwrap();
        if answers(&server, &known) {
            continue;
        }
        // CRIU may have ended before its command, or without it.
        server.bury();
        let complete = succeeded_or_last(&server, &name, last.as_deref());
        println!("attempt {attempt}: restored from {complete}");
        known.check(&server.client(), 5).unwrap();
        last = Some(complete);
    }
    server.finish();
}

/// Restores from the image `name`, or from the one before it. Returns which.
fn succeeded_or_last(server: &Server, name: &str, last: Option<&str>) -> String {
    if server.process.restore(name).status.success() {
        return name.to_owned();
    }
    let last = last.expect("an image of the server, which is gone");
    succeeded(&server.process.restore(last));
    last.to_owned()
}

#[test]
fn server_killed_in_a_checkpoint_comes_back_from_the_last_image() {
    let mut server = Server::start(&[]);
    let known = Known::of(&server.client());
    succeeded(&server.process.checkpoint("good", &["--leave-running", "--tcp-close"]));
    let mut command = Command::new(program("stasis"));
    command.arg("checkpoint").arg(server.process.pid().to_string()).arg(server.path("second"));
    command.env("STASIS_CRIU", criu()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut controller = command.spawn().unwrap();
    wait_until("the second image to begin", || server.path("second").exists());
    server.process.kill();
    let finished = controller.wait().unwrap().success();
    server.bury();
    succeeded(&server.process.restore("good"));
    known.check(&server.client(), 0).unwrap();
    println!("the second checkpoint had {} by then", if finished { "ended" } else { "not ended" });
    server.finish();
}
