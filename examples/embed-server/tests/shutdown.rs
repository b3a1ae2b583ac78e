// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a server: it accepts nothing new, and answers pending requests within the time limit.

mod common;

use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use self::common::raw::Raw;
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
fn shutdown_answers_with_503_what_it_has_no_time_for() {
    let mut server = Server::start(Setup { grace: Duration::from_millis(50), ..Setup::default() });
    server.control.hold();
    let mut clients: Vec<_> = (0..4).map(|_| Raw::new(server.address)).collect();
    for client in &mut clients {
        client.post("", json!({"model": common::MODEL, "input": "hello"}).to_string());
    }
    let accepted = || server.batcher.metrics().queued() + server.control.begun().concat().len();
    server.until("four to be accepted", || accepted() == 4);

    server.stop();

    assert_eq!(server.served().unanswered, 4);
    for client in &mut clients {
        let reply = client.expect();
        assert_eq!(reply.error(), (503, "shutting_down".to_owned()));
        assert_eq!(reply.header("retry-after"), Some("1"));
        assert!(client.ends());
    }
    server.control.release();
}

#[test]
fn shutdown_waits_neither_for_half_a_request_nor_for_the_whole_of_its_grace() {
    let mut server = Server::start(Setup::default());
    let mut half = Raw::new(server.address);
    half.send("POST /v1/embeddings HTTP/1.1\r\nhost:");
    server.until("its connection", || server.get("/metrics").text.contains("embed_connections 2\n"));

    server.stop();

    // The grace is as long as the test's patience.
    assert_eq!(server.served().unanswered, 0);
    assert_eq!(half.expect().error(), (408, "request_timeout".to_owned()));
}

#[test]
fn lost_device_is_503_for_health_and_requests_and_in_flight() {
    let server = Server::start(Setup::default());
    server.control.hold();
    let mut clients: Vec<_> = (0..3).map(|_| Raw::new(server.address)).collect();
    for (client, input) in clients.iter_mut().zip(["lose", "hello", "hello"]) {
        client.post("", json!({"model": common::MODEL, "input": input}).to_string());
    }
    let accepted = || server.batcher.metrics().queued() + server.control.begun().concat().len();
    server.until("three to be accepted", || accepted() == 3);
    server.control.lose();
    server.control.release();

    for client in &mut clients {
        let reply = client.expect();
        // A request that was not in the batch that found the loss may have been embedded before it.
        if reply.status != 200 {
            assert_eq!(reply.error(), (503, "device_lost".to_owned()));
            assert_eq!(reply.header("retry-after"), Some("1"));
        }
    }
    server.until("the loss", || server.get("/healthz").status == 503);
    for answer in [server.get("/healthz"), server.get("/health"), server.embed(&json!("hello"))] {
        assert_eq!(answer.status, 503);
        assert_eq!(answer.json()["error"]["code"], json!("device_lost"));
    }
    let metrics = server.get("/metrics").text;
    assert!(metrics.contains("embed_device_losses_total{agent=\"0\"} 1\n"), "{metrics}");
    assert!(metrics.contains("embed_agents_serving 0\n"), "{metrics}");
    assert_eq!(server.get("/info").json()["agents"], json!({"serving": 0, "reopening": 0, "lost": 1}));
}
