// SPDX-License-Identifier: MIT OR Apache-2.0
//! Further features for clients: fewer numbers, fewer tokens, packed bodies, other names, keys.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::Write as _;

use embed_server::http::{Keys, Limits, Options};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};

use self::common::fake::row;
use self::common::raw::Raw;
use self::common::{Answer, DIMENSIONS, LONGEST, MODEL, Server, Setup, client};

fn start(service: Options) -> Server {
    Server::start(Setup { service, ..Setup::default() })
}

fn with(server: &Server, field: &str, value: Value) -> Answer {
    let mut body = json!({"model": MODEL, "input": "hello world w10 w11 w12"});
    body[field] = value;
    server.post(&body.to_string())
}

fn numbers(answer: &Answer) -> Vec<f32> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    serde_json::from_value(answer.json()["data"][0]["embedding"].clone()).unwrap()
}

#[test]
fn fewer_dimensions_are_the_first_ones_of_length_1() {
    let server = start(Options::default());
    let whole = row(&[1, 3, 4, 10, 11, 12, 2], DIMENSIONS);

    let part = numbers(&with(&server, "dimensions", json!(7)));

    let length = whole[..7].iter().map(|x| x * x).sum::<f32>().sqrt();
    assert_eq!(part.len(), 7);
    for (part, whole) in part.iter().zip(&whole) {
        assert!((part - whole / length).abs() < 1e-6, "{part} is not {whole} / {length}");
    }
    assert_eq!(
        numbers(&with(&server, "dimensions", json!(DIMENSIONS))),
        whole,
        "all of them keep their bits"
    );
    for wrong in [json!(0), json!(385), json!(-1), json!(7.5), json!("7")] {
        let answer = with(&server, "dimensions", wrong.clone());
        assert_eq!(
            (answer.status, answer.json()["error"]["param"].clone()),
            (400, json!("dimensions")),
            "{wrong}"
        );
    }
}

#[test]
fn texts_and_tokens_are_truncated_as_asked() {
    let server = start(Options::default());
    let truncated = |tokens: Value| numbers(&with(&server, "truncate_prompt_tokens", tokens));

    assert_eq!(truncated(json!(4)), row(&[1, 3, 4, 2], DIMENSIONS));
    assert_eq!(truncated(json!(2)), row(&[1, 2], DIMENSIONS));
    assert_eq!(truncated(json!(LONGEST)), row(&[1, 3, 4, 10, 11, 12, 2], DIMENSIONS));
    let long = json!({"model": MODEL, "input": "hello ".repeat(100), "truncate_prompt_tokens": -1});
    let ids = [&[1][..], &[3; LONGEST - 2], &[2]].concat();
    assert_eq!(numbers(&server.post(&long.to_string())), row(&ids, DIMENSIONS));
    let tokens = json!({"model": MODEL, "input": vec![9; 100], "truncate_prompt_tokens": 3});
    assert_eq!(numbers(&server.post(&tokens.to_string())), row(&[9, 9, 9], DIMENSIONS));
    for wrong in [json!(0), json!(1), json!(LONGEST + 1), json!(-2), json!(4.5), json!("4")] {
        let answer = with(&server, "truncate_prompt_tokens", wrong.clone());
        let param = answer.json()["error"]["param"].clone();
        assert_eq!((answer.status, param), (400, json!("truncate_prompt_tokens")), "{wrong}");
    }
}

#[test]
fn packed_bodies_are_unpacked_within_the_limit() {
    let server = start(Options::default());
    let body = json!({"model": MODEL, "input": "hello"}).to_string();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(body.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    zlib.write_all(body.as_bytes()).unwrap();
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![b' '; 3_000_000]).unwrap();
    let send = |encoding: &str, body: &[u8]| {
        let mut client = Raw::new(server.address);
        client.post(&format!("content-encoding: {encoding}\r\n"), body).expect()
    };

    assert_eq!(send("gzip", &gzip).status, 200);
    assert_eq!(send("deflate", &zlib.finish().unwrap()).status, 200);
    assert_eq!(send("identity", body.as_bytes()).status, 200);
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 4096, "the bomb is {} bytes", bomb.len());
    assert_eq!(send("gzip", &bomb).error(), (413, "request_too_large".to_owned()));
    assert_eq!(send("gzip", body.as_bytes()).error(), (400, "invalid_content_encoding".to_owned()));
    assert_eq!(send("gzip", &gzip[..gzip.len() - 9]).error(), (400, "invalid_content_encoding".to_owned()));
    let refused = send("br", &gzip);
    assert_eq!(refused.error(), (415, "unsupported_content_encoding".to_owned()));
    assert!(refused.body.contains("'br'") && refused.header("accept-encoding") == Some("gzip, deflate"));
}

#[test]
fn aliases_are_names_of_the_model() {
    let aliases = vec!["text-embedding-3-small".to_owned(), "org/model".to_owned()];
    let server = start(Options { aliases: aliases.clone(), ..Options::default() });

    for alias in &aliases {
        let answer = server.post(&json!({"model": alias, "input": "hello"}).to_string());
        assert_eq!((answer.status, answer.json()["model"].clone()), (200, json!(MODEL)));
        assert_eq!(server.get(&format!("/v1/models/{alias}")).json()["id"], json!(alias));
    }
    let list = server.get("/v1/models").json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, [MODEL, &aliases[0], &aliases[1]]);
    assert_eq!(server.get("/v1/models/other").status, 404);
}

#[test]
fn key_is_needed_for_all_but_health() {
    let server = start(Options { keys: Keys::new(["secret", "other"]), ..Options::default() });
    let body = json!({"model": MODEL, "input": "hello"}).to_string();
    let ask = |headers: &str| Raw::new(server.address).post(headers, &body).expect();

    for headers in
        ["", "authorization: Bearer wrong\r\n", "authorization: Basic secret\r\n", "api-key: secret\r\n"]
    {
        let refused = ask(headers);
        assert_eq!(refused.error(), (401, "invalid_api_key".to_owned()), "{headers}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        assert!(!refused.body.contains("wrong"));
    }
    assert_eq!(ask("authorization: Bearer secret\r\n").status, 200);
    assert_eq!(ask("Authorization: bearer other\r\n").status, 200);
    for (path, status) in [
        ("/health", 200),
        ("/healthz", 200),
        ("/metrics", 401),
        ("/info", 401),
        ("/v1/models", 401),
        ("/none", 401),
    ] {
        assert_eq!(server.get(path).status, status, "{path}");
    }
}

#[test]
fn pages_of_other_origins_are_served_if_they_are_named() {
    let origin = "https://example.org";
    let keys = Keys::new(["secret"]);
    let server = start(Options { origins: vec![origin.parse().unwrap()], keys, ..Options::default() });
    let ask = |method: &str, origin: &str| {
        let mut raw = Raw::new(server.address);
        raw.send(format!(
            "{method} /v1/embeddings HTTP/1.1\r\nhost: a\r\norigin: {origin}\r\n\
             access-control-request-method: POST\r\naccess-control-request-headers: authorization\r\n\r\n"
        ));
        raw.expect()
    };

    let preflight = ask("OPTIONS", origin);
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (200, Some(origin)));
    assert_eq!(preflight.header("access-control-allow-headers"), Some("authorization"));
    let refused = ask("GET", origin);
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, Some(origin)));
    assert_eq!(ask("OPTIONS", "https://example.com").header("access-control-allow-origin"), None);
    let closed = start(Options::default());
    let plain: Answer = client().get(closed.url("/health")).header("origin", origin).call().unwrap().into();
    assert!(plain.headers.get("access-control-allow-origin").is_none());
}

#[test]
fn info_says_what_the_server_takes() {
    let server = start(Options { precision: "f16", ..Options::default() });

    let info = server.get("/info").json();

    for (field, value) in [
        ("model_id", json!(MODEL)),
        ("model_dtype", json!("f16")),
        ("dimensions", json!(DIMENSIONS)),
        ("max_input_length", json!(LONGEST)),
        ("max_client_batch_size", json!(32)),
        ("max_queue_sentences", json!(16)),
        ("agents", json!({"serving": 1, "reopening": 0, "lost": 0})),
    ] {
        assert_eq!(info[field], value, "{field}");
    }
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
}

#[test]
fn huge_inputs_are_refused_for_what_they_are() {
    let limits = Limits { body_bytes: 8 << 20, ..Setup::default().limits };
    let server = Server::start(Setup { limits, ..Setup::default() });
    let code = |input: &Value| {
        let answer = server.embed(input);
        (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
    };

    let long = "hello ".repeat(1 << 20);
    assert_eq!(code(&json!(long)), (400, "context_length_exceeded".to_owned()));
    assert_eq!(code(&json!(vec!["a"; 1_000_000])), (400, "array_above_max_length".to_owned()));
    assert_eq!(code(&json!(vec![9; 1_000_000])), (400, "context_length_exceeded".to_owned()));
    assert_eq!(code(&json!(vec![[9]; 1_000_000])), (400, "array_above_max_length".to_owned()));
    assert_eq!(code(&json!("a".repeat(1 << 20))), (400, String::new()));
    // A text of any number of spaces has two tokens.
    assert_eq!(numbers(&server.embed(&json!(" ".repeat(1 << 20)))), row(&[1, 2], DIMENSIONS));
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let answer = server.post(&format!("{{\"model\":\"{MODEL}\",\"input\":{nested}}}"));
    assert_eq!(answer.status, 400, "{}", answer.text);
}
