// SPDX-License-Identifier: MIT OR Apache-2.0
//! Containers of an unmodified engine, checkpointed to archives and restored from them.
//!
//! The software device is in the container, too: the whole container is frozen and restored.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use stasis_tests::clients::with_clients;
use stasis_tests::container::{
    Bundle, Container, Containerd, Podman, fill_root, rounds, run, wait_for_the_end_of,
};
use stasis_tests::criu;
use stasis_tests::model;
use stasis_tests::plain_criu::at_post_dump;
use stasis_tests::server::{Client, Known};
use stasis_tests::tree::descendants;
use stasis_tests::worker::{is_alive, stasis, succeeded, wait_until};

const IMAGE: &str = "localhost/worker:1";
const WORKER: [&str; 5] = ["/app/counter-worker", "--until", "/out/stop", "--threads", "2"];

/// A host that has the worker's image.
fn host() -> Podman {
    let host = Podman::new();
    let root = host.path("root");
    fill_root(&root, &["counter-worker"]);
    host.import(&root, IMAGE);
    host
}

/// What `stasis archive` says of something that it has done.
fn archived(arguments: &[&str]) -> Value {
    succeeded(&stasis(&[&["archive", "--json"], arguments].concat(), &criu()))
}

/// All rounds from the first one, none twice and none missing.
fn is_one_life(log: &str) -> bool {
    let rounds = rounds(log);
    !rounds.is_empty() && rounds.iter().copied().eq(1..=rounds.len() as u64)
}

/// Has a worker end; it prints `done` only if every value was right.
fn finishes(container: &Container<'_>, shared: &Path) {
    fs::write(shared.join("stop"), "").unwrap();
    assert_eq!(container.wait(), 0, "{}", container.log());
    let log = container.log();
    assert!(log.lines().any(|line| line == "done"), "{log}");
}

#[test]
fn container_is_archived_removed_and_goes_on_on_another_host() {
    let host = host();
    let shared = tempfile::tempdir().unwrap();
    let container = host.start("worker", IMAGE, shared.path(), "", &WORKER);
    container.wait_rounds(2);
    let processes = container.processes();
    assert!(processes.len() >= 3, "a worker, and a device of two: {processes:?}");
    let archive = shared.path().join("worker.tar.gz");
    container.checkpoint(&archive, &["--compress", "gzip"]);
    wait_for_the_end_of(&processes);
    assert!(!container.is_running());
    let before = container.rounds();
    container.remove();
    let listed = run(Command::new("tar").arg("-tzf").arg(&archive));
    assert!(listed.contains("checkpoint/pages-1.img") && !listed.contains("stasis-1"), "{listed}");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (exported, unpacked) = (text(&archive), text(&shared.path().join("unpacked")));
    let shown = archived(&["show", &exported]);
    assert_eq!((&shown["name"], &shown["image"]), (&json!("worker"), &json!(IMAGE)), "{shown}");
    assert!(
        shown["images"].as_u64().unwrap() > 10 && shown["image_bytes"].as_u64().unwrap() > 1 << 20,
        "{shown}"
    );
    archived(&["unpack", &exported, &unpacked]);
    // An archive names the image that it goes on top of.
    host.start_over(IMAGE);

    // Podman takes what was packed here.
    let packed = shared.path().join("packed.tar");
    archived(&["pack", &text(&packed), "--unpacked", &unpacked]);
    let again = archived(&["show", &text(&packed)]);
    assert_eq!((&again["id"], &again["image_bytes"]), (&shown["id"], &shown["image_bytes"]), "{again}");
    let container = host.restore(&packed, "worker-again");
    container.wait_rounds(3);
    finishes(&container, shared.path());
    let log = container.log();
    assert!(is_one_life(&log) && container.rounds() >= before + 3, "frozen after round {before}: {log}");
}

#[test]
fn server_in_a_container_answers_the_same_after_it_was_removed() {
    const SERVER: &str = "localhost/embed-server:1";
    let host = Podman::new();
    let root = host.path("root");
    fill_root(&root, &["embed-server"]);
    fs::create_dir(root.join("model")).unwrap();
    for entry in fs::read_dir(model()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), root.join("model").join(entry.file_name())).unwrap();
    }
    host.import(&root, SERVER);
    fs::remove_dir_all(root).unwrap();
    let shared = tempfile::tempdir().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
    let listen = address.to_string();
    let command = ["/app/embed-server", "--listen", &listen, "--model", "/model", "--no-warm-up"];
    // A client that is connected meanwhile finds its connection closed.
    let container = host.start("server", SERVER, shared.path(), "tcp-close\n", &command);
    wait_until("the server's port", || {
        assert!(container.is_running(), "{}", container.log());
        container.log().contains("listening on")
    });
    let client = Client::new(address);
    let known = container.inside(|| Known::of(&client));
    let processes = container.processes();
    let archive = shared.path().join("server.tar.zst");
    container.checkpoint(&archive, &[]);
    wait_for_the_end_of(&processes);
    container.remove();
    host.start_over(SERVER);

    let container = host.restore(&archive, "server-again");
    let ready = container.inside(|| {
        // A network that runc makes for a restore has no interface that is up; podman brings up its own.
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        let client = Client::new(address);
        (0..6).for_each(|number| known.check(&client, number).unwrap());
        client.metric("embed_embeddings_total").unwrap()
    });
    // It goes on from its round: the rounds before, and two for each check.
    assert!((ready - 36.0).abs() < 0.5, "{ready}");
    // And it still ends on request.
    container.stop();
    assert_eq!(container.wait(), 0, "{}", container.log());
}

#[test]
fn container_that_is_left_running_goes_on_and_so_does_its_copy() {
    let host = host();
    let shared = tempfile::tempdir().unwrap();
    let container = host.start("worker", IMAGE, shared.path(), "", &WORKER);
    container.wait_rounds(2);
    let first = container.pid();
    let archive = shared.path().join("worker.tar.gz");
    // Twice: the second time, the device that it started after the first restore must end.
    container.checkpoint(&archive, &["--leave-running"]);
    container.wait_rounds(2);
    container.checkpoint(&archive, &["--leave-running"]);
    container.wait_rounds(2);
    assert_eq!(container.pid(), first);
    let copy = host.restore(&archive, "copy");
    copy.wait_rounds(2);
    assert!(is_alive(first) && copy.pid() != first);
    finishes(&container, shared.path());
    assert!(is_one_life(&container.log()), "{}", container.log());
    finishes(&copy, shared.path());
    // Its log is archived after the original goes on, so the log has some rounds twice; but it never started again from
    // round 1.
    let log = copy.log();
    assert_eq!(rounds(&log).iter().filter(|round| **round == 1).count(), 1, "{log}");
}

#[test]
fn container_whose_checkpoint_fails_runs_on() {
    let host = host();
    let shared = tempfile::tempdir().unwrap();
    // CRIU fails at its last step: the device has ended by then.
    let veto = at_post_dump(shared.path(), "touch \"$(dirname \"$0\")/vetoed\"; exit 3");
    let settings = format!("action-script {}\n", veto.display());
    let container = host.start("worker", IMAGE, shared.path(), &settings, &WORKER);
    container.wait_rounds(2);
    let first = container.pid();
    let devices = descendants(first);
    let outcome = container.try_checkpoint(&shared.path().join("worker.tar.gz"), &[]);
    assert!(!outcome.status.success() && shared.path().join("vetoed").exists(), "{outcome:?}");
    let log = host.criu_logs();
    assert!(log.contains("kept outside the tree") && log.contains("the software device has ended"), "{log}");
    wait_for_the_end_of(&devices);
    container.wait_rounds(3);
    assert_eq!(container.pid(), first);
    finishes(&container, shared.path());
    assert!(is_one_life(&container.log()));
}

#[test]
fn bundle_of_runc_is_archived_and_goes_on() {
    let shared = tempfile::tempdir().unwrap();
    let bundle = Bundle::new(&["counter-worker"], shared.path(), &WORKER);
    let log = bundle.path("log");
    let text = || fs::read_to_string(&log).unwrap_or_default();
    let wait_rounds = |more| {
        let start = rounds(&text()).len();
        wait_until("rounds of a worker in a bundle", || rounds(&text()).len() >= start + more);
    };
    bundle.start(&["run"], &log);
    wait_rounds(2);
    let first = bundle.pid().unwrap();
    let processes: Vec<i32> = std::iter::once(first).chain(descendants(first)).collect();
    let (images, work) = (bundle.path("images"), bundle.path("work"));
    let paths = ["--image-path", images.to_str().unwrap(), "--work-path", work.to_str().unwrap()];
    let mut command = bundle.runc(&["checkpoint"]);
    let outcome = command.args(paths).arg(bundle.id()).output().unwrap();
    assert!(outcome.status.success(), "{outcome:?}: {}", bundle.criu_logs());
    wait_for_the_end_of(&processes);
    assert_eq!(bundle.pid(), None);
    // An archive as kubelet has it.
    let path = |name: &str| bundle.path(name).to_str().unwrap().to_owned();
    let (packed, unpacked) = (path("packed.tar"), path("unpacked"));
    let what = ["--bundle", &path("bundle"), "--id", bundle.id(), "--image", "here/counter:1"];
    archived(&[&["pack", &packed, "--images", paths[1]], &what[..]].concat());
    fs::remove_dir_all(&images).unwrap();
    let member = |name: &str| -> Value {
        serde_json::from_str(&run(Command::new("tar").args(["-xOf", &packed, name]))).unwrap()
    };
    let config = member("config.dump");
    assert_eq!((&config["id"], &config["rootfsImageName"]), (&json!(bundle.id()), &json!("here/counter:1")));
    assert!(config["createdTime"].as_str().unwrap().ends_with('Z') && config["checkpointedTime"].is_string());
    let spec = member("spec.dump");
    let annotations = spec["annotations"]["io.kubernetes.cri-o.Annotations"].as_str().unwrap();
    assert!(
        serde_json::from_str::<Value>(annotations).unwrap().is_object() && spec["process"]["args"].is_array()
    );
    archived(&["unpack", &packed, &unpacked]);
    let images = format!("{unpacked}/checkpoint");
    let paths = ["--image-path", &images, "--work-path", paths[3]];
    bundle.start(&[&["restore"], &paths[..]].concat(), &log);
    wait_rounds(3);
    fs::write(shared.path().join("stop"), "").unwrap();
    wait_until("the worker's last word", || text().lines().any(|line| line == "done"));
    assert!(is_one_life(&text()), "{}", text());
}

#[test]
fn container_of_containerd_goes_on_under_another_containerd() {
    with_clients(|| {
        let (podman, shared) = (host(), tempfile::tempdir().unwrap());
        let [image, archive, log] =
            ["image.tar", "checkpoint.tar", "log"].map(|name| shared.path().join(name));
        run(podman.command(&["save", "--format", "oci-archive", "--output"]).arg(&image).arg(IMAGE));
        let [here, there] = [(); 2].map(|()| Containerd::start());
        [&here, &there].iter().for_each(|host| host.import(&image, true));
        let said = || fs::read_to_string(&log).unwrap_or_default();
        let count = || said().lines().filter(|line| line.starts_with("round ")).count();
        here.run("worker", IMAGE, shared.path(), &log, &WORKER);
        wait_until("rounds", || count() > 2);
        here.checkpoint("worker", &archive);
        let at = count();
        wait_until("rounds after the checkpoint", || count() > at + 2);
        run(&mut here.ctr(&["tasks", "kill", "--signal", "KILL", "worker"]));
        assert_eq!(here.end("worker"), 137);
        there.restore("worker", &archive);
        assert_eq!(there.state("worker").as_deref(), Some("RUNNING"));
        // Its output goes nowhere then; it ends well only if every value was right.
        std::thread::sleep(std::time::Duration::from_millis(300));
        fs::write(shared.path().join("stop"), "").unwrap();
        assert_eq!(there.end("worker"), 0);
    });
}
