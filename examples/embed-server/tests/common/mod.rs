// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server on its own port, with fake embedders and a tokenizer of one token per word.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

pub mod fake;
pub mod raw;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use embed_server::batch::{BatchOptions, Batcher};
use embed_server::http::{Limits, Options, Port, Served, State, elapse, serve};
use embed_server::model::Tokenizer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::fake::{Control, Fake, PATIENCE};

pub const MODEL: &str = "all-MiniLM-L6-v2";
pub const DIMENSIONS: usize = 384;
/// Tokens of a sentence, and of a batch.
pub const LONGEST: usize = 16;
pub const BUDGET: usize = 64;

/// Words known to the tokenizer by themselves; `w10` and so on have their number for an id.
const WORDS: [&str; 9] = ["[UNK]", "[CLS]", "[SEP]", "hello", "world", "fail", "panic", "nan", "lose"];
pub const VOCABULARY: usize = 100;

/// Writes a `tokenizer.json` that splits at spaces.
pub fn write_tokenizer(directory: &Path) {
    let word = |id: usize| WORDS.get(id).map_or_else(|| format!("w{id}"), ToString::to_string);
    let vocabulary: serde_json::Map<_, _> = (0..VOCABULARY).map(|id| (word(id), json!(id))).collect();
    let special = |name: &str, id: u32| json!({"id": name, "ids": [id], "tokens": [name]});
    let part = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let a = json!({"Sequence": {"id": "A", "type_id": 0}});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [part("[CLS]"), a, part("[SEP]")],
            "pair": [part("[CLS]"), a, part("[SEP]")],
            "special_tokens": {"[CLS]": special("[CLS]", 1), "[SEP]": special("[SEP]", 2)},
        },
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    });
    std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// How a test's server differs from the usual one.
#[derive(Debug)]
pub struct Setup {
    pub limits: Limits,
    /// The other settings; name and limits are the server's defaults.
    pub service: Options,
    pub options: BatchOptions,
    pub grace: Duration,
    pub agents: usize,
}

impl Default for Setup {
    fn default() -> Self {
        let limits = Limits { inputs: 32, body_bytes: 4096, time: PATIENCE, ..Limits::default() };
        let options = BatchOptions { queue_tokens: 128, queue_sentences: 16, ..BatchOptions::default() };
        Self { limits, service: Options::default(), options, grace: PATIENCE, agents: 1 }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    pub control: Arc<Control>,
    pub state: State,
    pub batcher: Arc<Batcher>,
    pub runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<Served>>,
}

impl Server {
    pub fn start(setup: Setup) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_tokenizer(directory.path());
        let tokenizer = Tokenizer::open(directory.path(), LONGEST, false).unwrap();
        let control = Arc::new(Control::default());
        let fakes = (0..setup.agents).map(|_| Fake::boxed(&control, DIMENSIONS, BUDGET)).collect::<Vec<_>>();
        let batcher = Arc::new(Batcher::start(fakes, setup.options).unwrap());
        let options = Options { name: MODEL.to_owned(), limits: setup.limits, ..setup.service };
        let state = State::with(options, tokenizer, batcher.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            let _ = stopped.await;
            Port::Close
        };
        let served = Some(runtime.spawn(serve(listener, state.clone(), shutdown, elapse(setup.grace))));
        Self { address, control, state, batcher, runtime, stop: Some(stop), served }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Begins the shutdown.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the end of a shutdown.
    pub fn served(&mut self) -> Served {
        let served = self.served.take().expect("waited for once");
        let ended = async move { tokio::time::timeout(PATIENCE, served).await };
        self.runtime.block_on(ended).expect("the server did not end").unwrap()
    }

    /// Waits for a condition that the server will reach.
    pub fn until(&self, what: &str, reached: impl Fn() -> bool) {
        let begin = Instant::now();
        while !reached() {
            assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A response in full.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|why| panic!("{why} in {:?}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers)).to_str().unwrap()
    }
}

impl From<ureq::http::Response<ureq::Body>> for Answer {
    fn from(response: ureq::http::Response<ureq::Body>) -> Self {
        let (parts, mut body) = response.into_parts();
        let text = body.read_to_string().unwrap();
        Self { status: parts.status.as_u16(), headers: parts.headers, text }
    }
}

/// A client that treats no status as an error.
pub fn client() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
    config.build().into()
}

impl Server {
    pub fn get(&self, path: &str) -> Answer {
        client().get(self.url(path)).call().unwrap().into()
    }

    pub fn post(&self, body: &str) -> Answer {
        post(&self.url("/v1/embeddings"), body)
    }

    pub fn embed(&self, input: &Value) -> Answer {
        self.post(&json!({"model": MODEL, "input": input}).to_string())
    }
}

pub fn post(url: &str, body: &str) -> Answer {
    client().post(url).content_type("application/json").send(body).unwrap().into()
}
