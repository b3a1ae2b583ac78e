// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bad connections: slow, half closed, too many, and with invalid requests.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::Duration;

use embed_server::http::{ConnectionLimits, Limits, Options};
use serde_json::json;

use self::common::fake::{PATIENCE, row};
use self::common::raw::Raw;
use self::common::{DIMENSIONS, MODEL, Server, Setup};

/// A server whose connections have these limits.
fn start(change: impl FnOnce(&mut ConnectionLimits)) -> Server {
    let mut connections =
        ConnectionLimits { connections: 64, head: PATIENCE, idle: PATIENCE, stall: PATIENCE };
    change(&mut connections);
    Server::start(Setup { service: Options { connections, ..Options::default() }, ..Setup::default() })
}

const SHORT: Duration = Duration::from_millis(200);

fn body(input: &str) -> String {
    json!({"model": MODEL, "input": input}).to_string()
}

#[test]
fn half_closed_client_gets_its_answer() {
    let server = start(|_| {});
    server.control.hold();
    let mut client = Raw::new(server.address);

    client.post("", body("hello")).half_close();

    server.control.await_begun(1);
    // The server tests the connection before it answers.
    let interim = client.expect();
    assert_eq!((interim.status, interim.body.as_str()), (100, ""));
    server.control.release();
    let answer = client.expect();
    assert_eq!(answer.status, 200, "{answer:?}");
    let embedding =
        serde_json::from_str::<serde_json::Value>(&answer.body).unwrap()["data"][0]["embedding"].clone();
    assert_eq!(serde_json::from_value::<Vec<f32>>(embedding).unwrap(), row(&[1, 3, 2], DIMENSIONS));
    assert!(client.ends());
}

#[test]
fn half_closed_client_of_http_1_0_gets_its_answer_alone() {
    let server = start(|_| {});
    server.control.hold();
    let mut client = Raw::new(server.address);
    let body = body("hello");

    let head = format!("POST /v1/embeddings HTTP/1.0\r\ncontent-length: {}\r\n\r\n", body.len());
    client.send(head + &body).half_close();

    server.control.await_begun(1);
    server.control.release();
    assert_eq!(client.expect().status, 200);
    assert!(client.ends());
}

#[test]
fn running_batch_of_a_client_that_is_gone_is_given_up() {
    let server = start(|_| {});
    server.control.watch();
    let mut client = Raw::new(server.address);
    client.post("", body("hello"));
    server.control.await_begun(1);

    drop(client);

    let line = "embed_batches_abandoned_total 1\n";
    server.until("the batch to be given up", || server.get("/metrics").text.contains(line));
    server.control.release();
    assert_eq!(server.embed(&json!("world")).status, 200);
}

#[test]
fn headers_that_do_not_come_are_408() {
    let server = start(|limits| limits.head = SHORT);
    let (mut half, mut silent) = (Raw::new(server.address), Raw::new(server.address));

    half.send("POST /v1/embeddings HTTP/1.1\r\nhost:");

    assert_eq!(half.expect().error(), (408, "request_timeout".to_owned()));
    assert!(half.ends());
    assert!(silent.ends(), "a client that sent nothing gets no response");
    let line = "embed_http_requests_total{route=\"unread\",status=\"408\"} 1\n";
    server.until("its count", || server.get("/metrics").text.contains(line));
}

#[test]
fn headers_a_byte_at_a_time_have_no_more_time_than_others() {
    let server = start(|limits| limits.head = SHORT * 4);
    let mut client = Raw::new(server.address);
    let mut bytes = "GET /healthz HTTP/1.1\r\nx: ".bytes().chain(std::iter::repeat(b'a'));

    while !server.get("/metrics").text.contains("route=\"unread\",status=\"408\"") {
        client.send([bytes.next().unwrap()]);
    }

    assert_eq!(client.expect().status, 408);
}

#[test]
fn idle_connection_is_closed_and_a_busy_one_is_not() {
    let server = start(|limits| limits.idle = SHORT);
    let mut client = Raw::new(server.address);
    server.control.hold();

    client.post("", body("hello"));
    server.control.await_begun(1);
    std::thread::sleep(SHORT * 2);
    server.control.release();

    assert_eq!(client.expect().status, 200);
    assert!(client.ends());
}

#[test]
fn client_that_takes_nothing_of_its_answer_loses_it() {
    let limits = Limits { inputs: 4096, body_bytes: 1 << 20, ..Setup::default().limits };
    let mut setup = Setup { limits, ..Setup::default() };
    setup.options.queue_sentences = 4096;
    setup.options.queue_tokens = 1 << 20;
    setup.service.connections.stall = SHORT;
    let server = Server::start(setup);
    let mut client = Raw::new(server.address);

    // Some 17 MB of JSON, more than two sockets hold.
    client.post("", json!({"model": MODEL, "input": vec!["hello"; 4000]}).to_string());

    server.until("the connection to end", || {
        let text = server.get("/metrics").text;
        text.contains("embed_http_request_seconds_count{route=\"/v1/embeddings\"} 1")
            && text.contains("embed_connections 1\n")
    });
}

#[test]
fn connections_over_the_limit_are_503() {
    let server = start(|limits| limits.connections = 2);
    let mut kept: Vec<_> = (0..2).map(|_| Raw::new(server.address)).collect();
    for client in &mut kept {
        client.send("GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.expect().status, 200);
    }

    let mut third = Raw::new(server.address);
    let refused = third.expect();

    assert_eq!(refused.error(), (503, "too_many_connections".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(third.ends());
    drop(kept);
    server.until("a free place", || {
        let mut client = Raw::new(server.address);
        client.send("GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        client.reply().is_some_and(|reply| reply.status == 200)
    });
    assert!(server.get("/metrics").text.contains("embed_connections_refused_total "));
}

#[test]
fn requests_that_cannot_be_read_have_the_shape_of_all_errors() {
    let server = start(|_| {});
    let long = "a".repeat(70_000);
    let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    let large = format!("x: {}\r\n", "a".repeat(140_000));
    let get = "GET /healthz HTTP/1.1\r\nhost: a\r\n";
    for (request, status, code) in [
        (format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"), 414, "uri_too_long"),
        (format!("{get}{many}\r\n"), 431, "headers_too_large"),
        (format!("{get}{large}\r\n"), 431, "headers_too_large"),
        (format!("{get}no colon\r\n\r\n"), 400, "bad_http"),
        (format!("{get}a b: 1\r\n\r\n"), 400, "bad_http"),
        (format!("{get}x: \0\r\n\r\n"), 400, "bad_http"),
        ("GET / HTTP/3.7\r\n\r\n".to_owned(), 400, "bad_http"),
        ("\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\r\n\r\n".to_owned(), 400, "bad_http"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 400, "bad_http"),
        (format!("{get}content-length: 1\r\ncontent-length: 2\r\n\r\n"), 400, "bad_http"),
        (format!("{get}content-length: -1\r\n\r\n"), 400, "bad_http"),
        (format!("{get}content-length: 99999999999999999999999\r\n\r\n"), 400, "bad_http"),
        (format!("{get}transfer-encoding: gzip\r\n\r\n"), 400, "bad_http"),
        ("GET /v1/models/%ff HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), 400, ""),
    ] {
        let mut client = Raw::new(server.address);
        client.send(&request);
        let shown: String = request.chars().take(80).collect();
        let reply = client.reply().unwrap_or_else(|| panic!("no answer to {shown:?}"));
        assert_eq!(reply.error(), (status, code.to_owned()), "{shown:?}");
    }
    // Half a request, and the end.
    let mut client = Raw::new(server.address);
    client.send("GET /healthz HTTP/1.1\r\nhost").half_close();
    assert_eq!(client.expect().error(), (400, "bad_http".to_owned()));
    assert!(client.ends());
}

#[test]
fn pipelined_requests_are_answered_in_order_and_a_broken_one_ends_them() {
    let server = start(|_| {});
    let mut client = Raw::new(server.address);
    let post = |text: &str| {
        let body = body(text);
        format!("POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };

    let requests: String = (10..40).map(|n| post(&format!("w{n}"))).collect();
    client.send(requests + "nonsense\r\n\r\n" + &post("w9")).half_close();

    for n in 10..40 {
        let answer = std::iter::repeat_with(|| client.expect()).find(|reply| reply.status != 100).unwrap();
        let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        let numbers: Vec<f32> = serde_json::from_value(body["data"][0]["embedding"].clone()).unwrap();
        assert_eq!(numbers, row(&[1, n, 2], DIMENSIONS));
    }
    assert_eq!(client.expect().error(), (400, "bad_http".to_owned()));
    assert!(client.ends());
}

#[test]
fn chunks_that_lie_are_400_and_harm_nobody() {
    let server = start(|_| {});
    let head = "POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    for chunks in ["zz\r\n", "ffffffffffffffffff\r\n", "5\r\nabcdeXX", "3\r\n{\"a\r\n0\r\n\r\n", "-1\r\n"] {
        let mut client = Raw::new(server.address);
        client.send(head).send(chunks);
        let (status, _) = client.expect().error();
        assert_eq!(status, 400, "{chunks:?}");
    }
    let body = body("hello");
    let mut client = Raw::new(server.address);
    client.send(head);
    for byte in body.bytes() {
        client.send(format!("1;ext=\"x\"\r\n{}\r\n", char::from(byte)));
    }
    client.send("0\r\ntrailer: x\r\n\r\n");
    assert_eq!(client.expect().status, 200);
}

#[test]
fn request_whose_end_can_be_seen_differently_is_the_connections_last() {
    let server = start(|_| {});
    let mut client = Raw::new(server.address);

    client
        .send("GET /healthz HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n");
    client.send("0\r\n\r\nGET /metrics HTTP/1.1\r\nhost: a\r\n\r\n");

    assert_eq!(client.expect().status, 200);
    assert!(client.ends(), "what follows was taken for a request");
}

#[test]
fn clients_that_promise_and_do_not_send_hold_nothing_but_their_room() {
    let limits = Limits { body_bytes: 64 << 10, buffered_bytes: 64 << 10, ..Setup::default().limits };
    let server = Server::start(Setup { limits, ..Setup::default() });
    let mut slow = Raw::new(server.address);
    slow.send("POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n{");

    // Small requests need no room.
    assert_eq!(server.embed(&json!("hello")).status, 200);
    drop(slow);
    let text = format!("hello{}", " ".repeat(60_000));
    assert_eq!(server.embed(&json!(text)).status, 200);
}
