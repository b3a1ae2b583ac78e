// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a server: nothing new, everything begun is answered, within the time there is.

mod common;

use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use self::common::fake::PATIENCE;
use self::common::{DIMENSIONS, Server, Setup};

#[test]
fn health_and_new_requests_are_503_while_draining() {
    let server = Server::start(Setup::default());
    assert_eq!(server.get("/healthz").json(), json!({"status": "ok"}));

    server.state.drain();

    for answer in [server.get("/healthz"), server.embed(&json!("hello"))] {
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("retry-after"), "1");
        let error = &answer.json()["error"];
        assert_eq!((&error["type"], &error["code"]), (&json!("server_error"), &json!("shutting_down")));
    }
    assert_eq!(server.get("/metrics").status, 200);
}

#[test]
fn shutdown_answers_what_was_begun_and_accepts_nothing_more() {
    let mut server = Server::start(Setup::default());
    server.control.hold();
    let url = server.url("/v1/embeddings");
    let body = json!({"model": common::MODEL, "input": "hello"}).to_string();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (url, body) = (url.clone(), body.clone());
            std::thread::spawn(move || common::post(&url, &body))
        })
        .collect();
    let accepted = || server.batcher.metrics().queued() + server.control.begun().concat().len();
    server.until("four to be accepted", || accepted() == 4);

    server.stop();
    server.until("the port to close", || TcpStream::connect(server.address).is_err());
    server.control.release();

    assert_eq!(server.served().unanswered, 0);
    for client in clients {
        let answer = client.join().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.json()["data"][0]["embedding"].as_array().unwrap().len(), DIMENSIONS);
    }
    server.batcher.join();
    server.control.await_dropped(1);
}

#[test]
fn shutdown_ends_idle_connections() {
    let mut server = Server::start(Setup::default());
    let client = common::client();
    let status = client.get(server.url("/healthz")).call().unwrap().status();
    assert_eq!(status, 200);

    server.stop();

    // The client keeps its connection open; the server does not wait for it.
    assert_eq!(server.served().unanswered, 0);
    drop(client);
}

#[test]
fn shutdown_does_not_wait_for_ever() {
    let mut server = Server::start(Setup { grace: Duration::from_millis(50), ..Setup::default() });
    server.control.hold();
    let url = server.url("/v1/embeddings");
    let body = json!({"model": common::MODEL, "input": "hello"}).to_string();
    let stuck =
        std::thread::spawn(move || common::client().post(url).content_type("application/json").send(body));
    server.control.await_begun(1);

    server.stop();

    assert_eq!(server.served().unanswered, 1);
    server.control.release();
    let answer = stuck.join().unwrap();
    assert!(answer.is_ok(), "its connection lives as long as the process: {answer:?} within {PATIENCE:?}");
}
