// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server over TCP: every status, and the exact form of the bodies.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use embed_server::embedder::Sentence;
use embed_server::http::Limits;
use serde_json::{Value, json};

use self::common::fake::{NAN, PANIC, PATIENCE, row};
use self::common::{Answer, DIMENSIONS, LONGEST, MODEL, Server, Setup, VOCABULARY, client, post};

/// Checks an error's status and body. The caller checks the returned message.
fn assert_error(answer: &Answer, status: u16, kind: &str, param: Option<&str>, code: Option<&str>) -> String {
    assert_eq!(answer.status, status, "{}", answer.text);
    assert_eq!(answer.header("content-type"), "application/json");
    assert!(!answer.header("x-request-id").is_empty());
    let body = answer.json();
    let message = body["error"]["message"].as_str().unwrap_or_default().to_owned();
    let expected = json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
    assert_eq!(body, expected);
    assert!(!message.is_empty());
    message
}

const INVALID: &str = "invalid_request_error";

fn floats(answer: &Answer) -> Vec<Vec<f32>> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let rows = answer.json()["data"].as_array().unwrap().clone();
    rows.into_iter().map(|row| serde_json::from_value(row["embedding"].clone()).unwrap()).collect()
}

#[test]
fn embeddings_have_openai_shape() {
    let server = Server::start(Setup::default());

    let answer = server.embed(&json!(["hello world", ""]));

    let rows = [row(&[1, 3, 4, 2], DIMENSIONS), row(&[1, 2], DIMENSIONS)];
    assert_eq!(floats(&answer), rows, "numbers survive their text bit for bit");
    let item = |index: usize| json!({"object": "embedding", "index": index, "embedding": answer.json()["data"][index]["embedding"]});
    let expected = json!({
        "object": "list",
        "data": [item(0), item(1)],
        "model": MODEL,
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    });
    assert_eq!(answer.json(), expected);
    assert_eq!(answer.header("content-type"), "application/json");
}

#[test]
fn input_takes_texts_and_tokens() {
    let server = Server::start(Setup::default());
    let rows = |input: Value| floats(&server.embed(&input));
    let hello = row(&[1, 3, 2], DIMENSIONS);

    assert_eq!(rows(json!("hello")), std::slice::from_ref(&hello));
    assert_eq!(rows(json!([1, 3, 2])), std::slice::from_ref(&hello));
    assert_eq!(rows(json!([[1, 3, 2], [9]])), [hello, row(&[9], DIMENSIONS)]);
    // More than is tokenized and written without another thread.
    let many: Vec<String> = (0..16).map(|i| format!("w{}{}", i + 10, " ".repeat(200))).collect();
    let expected: Vec<_> = (10..26).map(|id| row(&[1, id, 2], DIMENSIONS)).collect();
    assert_eq!(rows(json!(many)), expected);
}

#[test]
fn base64_is_little_endian_f32() {
    let server = Server::start(Setup::default());
    let body = json!({"model": MODEL, "input": "hello", "encoding_format": "base64", "user": "u", "x": 1});

    let answer = server.post(&body.to_string());

    let text = answer.json()["data"][0]["embedding"].as_str().unwrap().to_owned();
    let numbers: Vec<f32> = STANDARD
        .decode(text)
        .unwrap()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(numbers, row(&[1, 3, 2], DIMENSIONS));
}

#[test]
fn wrong_requests_are_400() {
    let server = Server::start(Setup::default());
    let with = |field: &str, value: Value| {
        let mut body = json!({"model": MODEL, "input": "hello"});
        body[field] = value;
        server.post(&body.to_string())
    };

    for text in ["", "{", "[]", "\"text\"", "{\"model\":\"a\" \"b\"}", "\u{0}"] {
        let message = assert_error(&server.post(text), 400, INVALID, None, None);
        assert!(message.contains("not a JSON object"), "{text}: {message}");
    }
    for field in ["model", "input"] {
        assert_error(&with(field, Value::Null), 400, INVALID, Some(field), None);
    }
    assert_error(&with("model", json!(1)), 400, INVALID, Some("model"), None);
    assert_error(&with("input", json!([])), 400, INVALID, Some("input"), None);
    assert_error(&with("input", json!(["a", 1])), 400, INVALID, Some("input"), None);
    assert_error(&with("input", json!([[]])), 400, INVALID, Some("input"), None);
    let unknown = assert_error(&with("input", json!([VOCABULARY])), 400, INVALID, Some("input"), None);
    assert!(unknown.contains("Token 100"), "{unknown}");
    let param = Some("encoding_format");
    assert_error(&with("encoding_format", json!("hex")), 400, INVALID, param, None);
    let message = assert_error(&with("dimensions", json!(385)), 400, INVALID, Some("dimensions"), None);
    assert!(message.contains("384"), "{message}");
    assert_error(&with("dimensions", json!("384")), 400, INVALID, Some("dimensions"), None);
    assert_eq!(with("dimensions", json!(DIMENSIONS)).status, 200);
    let code = Some("array_above_max_length");
    let message = assert_error(&with("input", json!(vec!["a"; 33])), 400, INVALID, Some("input"), code);
    assert!(message.contains("33") && message.contains("32"), "{message}");
    // As many as a request may have, but more than the queue ever holds.
    assert_error(&with("input", json!(vec!["a"; 17])), 400, INVALID, Some("input"), code);
    let code = "max_tokens_per_request";
    assert_error(&with("input", json!(vec![vec![9; LONGEST]; 9])), 400, code, None, Some(code));
    assert!(server.control.begun().concat().len() == 1, "a refused request was embedded");
}

#[test]
fn long_text_is_named_with_its_tokens_and_the_limit() {
    let server = Server::start(Setup::default());
    let code = Some("context_length_exceeded");

    assert_eq!(server.embed(&json!("hello ".repeat(LONGEST - 2))).status, 200);
    let text = server.embed(&json!(["hello", "hello ".repeat(LONGEST - 1)]));
    let ids = server.embed(&json!(vec![3; LONGEST + 1]));

    for (answer, index) in [(text, "Input 1:"), (ids, "Input 0:")] {
        let message = assert_error(&answer, 400, INVALID, Some("input"), code);
        assert!(message.starts_with(index), "{message}");
        assert!(message.contains("17 tokens") || message.contains("has 17"), "{message}");
        assert!(message.contains("16"), "{message}");
    }
}

#[test]
fn unknown_model_route_and_method_are_404_and_405() {
    let server = Server::start(Setup::default());
    let param = (Some("model"), Some("model_not_found"));

    let body = json!({"model": "gpt-4", "input": "hello"}).to_string();
    let message = assert_error(&server.post(&body), 404, INVALID, param.0, param.1);
    assert!(message.contains("gpt-4") && message.contains(MODEL), "{message}");
    assert_error(&server.get("/v1/models/some/other"), 404, INVALID, param.0, param.1);
    for path in ["/", "/v1/embedding", "/v1/embeddings/", "/v1/chat/completions"] {
        let message = assert_error(&server.get(path), 404, INVALID, None, Some("unknown_url"));
        assert!(message.contains(&format!("GET {path}")), "{message}");
    }
    let code = Some("method_not_supported");
    let get = server.get("/v1/embeddings");
    assert_error(&get, 405, INVALID, None, code);
    assert_eq!(get.header("allow"), "POST");
    assert_error(&post(&server.url("/healthz"), "{}"), 405, INVALID, None, code);
}

#[test]
fn body_over_the_limit_is_413() {
    let server = Server::start(Setup::default());
    let code = Some("request_too_large");

    let body = json!({"model": MODEL, "input": "hello"}).to_string();
    assert_eq!(server.post(&format!("{body:4096}")).status, 200);
    let message = assert_error(&server.post(&format!("{body:4097}")), 413, INVALID, None, code);
    assert!(message.contains("4096"), "{message}");
    // Much more than sockets buffer: the answer comes nevertheless.
    assert_error(&server.post(&(body + &" ".repeat(8_000_000))), 413, INVALID, None, code);
    // Without a length beforehand.
    let chunks = client().post(server.url("/v1/embeddings"));
    let reader = &mut std::io::repeat(b' ').take(100_000);
    let answer = chunks.content_type("application/json").send(ureq::SendBody::from_reader(reader)).unwrap();
    assert_error(&answer.into(), 413, INVALID, None, code);
    // A body larger than what is read and thrown away is refused unread.
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream
        .write_all(b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n\r\n")
        .unwrap();
    assert!(response(&mut stream).starts_with("HTTP/1.1 413 "));
}

/// The first line and more of what comes on a raw connection.
fn response(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 512];
    let length = stream.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn body_of_another_type_is_415() {
    let server = Server::start(Setup::default());
    let body = json!({"model": MODEL, "input": "hello"}).to_string();
    let send = |kind: &str| {
        let request = client().post(server.url("/v1/embeddings")).content_type(kind);
        Answer::from(request.send(&body).unwrap())
    };

    let message = assert_error(&send("text/plain"), 415, INVALID, None, Some("unsupported_media_type"));
    assert!(message.contains("text/plain") && message.contains("application/json"), "{message}");
    assert_eq!(send("application/json; charset=utf-8").status, 200);
}

#[test]
fn full_queue_is_429_at_once_and_whole() {
    let server = Server::start(Setup::default());
    server.control.hold();
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| server.embed(&json!("hello")));
        server.control.await_begun(1);
        let waiting = scope.spawn(|| server.embed(&json!(vec!["hello"; 10])));
        server.until("ten to wait", || server.batcher.metrics().queued() == 10);

        let refused = server.embed(&json!(vec!["w11"; 7]));
        let message = assert_error(&refused, 429, "tokens", None, Some("rate_limit_exceeded"));
        assert!(message.contains("7 sentences") && message.contains("10 of 16"), "{message}");
        assert_eq!(refused.header("retry-after"), "1");
        assert_eq!(server.batcher.metrics().queued(), 10);

        server.control.release();
        assert_eq!(busy.join().unwrap().status, 200);
        assert_eq!(floats(&waiting.join().unwrap()).len(), 10);
    });
    assert_eq!(server.embed(&json!(vec!["w11"; 7])).status, 200);
    let metrics = server.get("/metrics").text;
    assert!(metrics.contains("embed_rejected_total 1\n"), "{metrics}");
}

#[test]
fn failed_device_is_500_for_its_batch_only() {
    let server = Server::start(Setup::default());

    let message =
        assert_error(&server.embed(&json!("fail")), 500, "server_error", None, Some("device_failed"));
    assert!(!message.contains("wish"), "the cause is for the log: {message}");
    for token in [PANIC, NAN] {
        assert_error(&server.embed(&json!([token])), 500, "server_error", None, None);
    }
    assert_eq!(server.embed(&json!("hello")).status, 200);
}

#[test]
fn late_request_is_504_and_leaves_the_queue() {
    let limits = Limits { time: Duration::from_millis(300), ..Setup::default().limits };
    let server = Server::start(Setup { limits, ..Setup::default() });
    server.control.hold();
    // Without HTTP, so that this request cannot be late itself.
    let _busy = server.batcher.submit(vec![Sentence::new([9])]).unwrap();
    server.control.await_begun(1);

    let late = server.embed(&json!("world"));

    let message = assert_error(&late, 504, "server_error", None, Some("timeout"));
    assert!(message.contains("300ms"), "{message}");
    assert_eq!(server.batcher.metrics().queued(), 0);
    server.control.release();
    // The agent is free again, and the cancelled sentences were not embedded.
    server.until("an answer", || server.embed(&json!("w10")).status == 200);
    assert!(!server.control.begun().concat().iter().any(|sentence| sentence.ids() == [1, 4, 2]));
}

#[test]
fn client_that_leaves_takes_its_sentences_along() {
    let server = Server::start(Setup::default());
    server.control.hold();
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| server.embed(&json!("hello")));
        server.control.await_begun(1);
        let body = json!({"model": MODEL, "input": "world"}).to_string();
        let mut stream = TcpStream::connect(server.address).unwrap();
        let head = "POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length:";
        write!(stream, "{head} {}\r\n\r\n{body}", body.len()).unwrap();
        server.until("one to wait", || server.batcher.metrics().queued() == 1);

        drop(stream);

        server.until("nobody to wait", || server.batcher.metrics().queued() == 0);
        server.control.release();
        assert_eq!(busy.join().unwrap().status, 200);
    });
    assert_eq!(server.control.begun().len(), 1);
    let line = "embed_http_requests_total{route=\"/v1/embeddings\",status=\"499\"} 1\n";
    server.until("its count", || server.get("/metrics").text.contains(line));
}

#[test]
fn many_clients_get_their_own_rows() {
    let server = Server::start(Setup { agents: 2, ..Setup::default() });
    std::thread::scope(|scope| {
        for worker in 0..8_u32 {
            let server = &server;
            scope.spawn(move || {
                let client = client();
                for turn in 0..20 {
                    let ids = [worker + 10, turn + 20];
                    let body = json!({"model": MODEL, "input": [ids, [3, 3]]});
                    let answer: Answer =
                        client.post(server.url("/v1/embeddings")).send_json(&body).unwrap().into();
                    assert_eq!(floats(&answer), [row(&ids, DIMENSIONS), row(&[3, 3], DIMENSIONS)]);
                }
            });
        }
    });
}

#[test]
fn models_are_listed() {
    let server = Server::start(Setup::default());

    let list = server.get("/v1/models").json();
    let one = server.get(&format!("/v1/models/{MODEL}")).json();

    let created = one["created"].as_u64().unwrap();
    assert_eq!(one, json!({"id": MODEL, "object": "model", "created": created, "owned_by": "stasis"}));
    assert_eq!(list, json!({"object": "list", "data": [one]}));
}

#[test]
fn request_ids_are_kept_or_made() {
    let server = Server::start(Setup::default());
    let id = |own: &str| {
        let request = client().get(server.url("/healthz")).header("x-request-id", own);
        Answer::from(request.call().unwrap()).header("x-request-id").to_owned()
    };

    assert_eq!(id("client-7"), "client-7");
    assert!(id("not sane").starts_with("req-"));
    assert_ne!(server.get("/healthz").header("x-request-id"), server.get("/nowhere").header("x-request-id"));
}

#[test]
fn metrics_count_what_happened() {
    let server = Server::start(Setup::default());
    server.embed(&json!(["hello", "hello world"]));
    server.embed(&json!("fail"));
    server.get("/nowhere/7");

    let answer = server.get("/metrics");

    assert!(answer.header("content-type").starts_with("application/openmetrics-text"));
    for line in [
        "embed_http_requests_total{route=\"/v1/embeddings\",status=\"200\"} 1",
        "embed_http_requests_total{route=\"/v1/embeddings\",status=\"500\"} 1",
        "embed_http_requests_total{route=\"other\",status=\"404\"} 1",
        "embed_http_request_seconds_count{route=\"/v1/embeddings\"} 2",
        "embed_http_requests_in_flight 1",
        "embed_queue_sentences 0",
        "embed_queue_tokens 0",
        "embed_batch_sentences_sum 3.0",
        "embed_batch_tokens_sum 10.0",
        "embed_embeddings_total 2",
        "embed_tokens_total 7",
        "embed_batches_failed_total 1",
        "embed_rejected_total 0",
    ] {
        assert!(answer.text.lines().any(|found| found == line), "no {line} in\n{}", answer.text);
    }
    for name in ["embed_agent_busy_seconds_total{agent=\"0\"} ", "process_start_time_seconds 1"] {
        assert!(answer.text.contains(name), "no {name} in\n{}", answer.text);
    }
}
