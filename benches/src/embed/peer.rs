// SPDX-License-Identifier: MIT OR Apache-2.0
//! The peers: the server's own HTTP and batching around another implementation of the model.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use embed_reference::Reference;
use embed_server::batch::{BatchOptions, Batcher};
use embed_server::embedder::{EmbedError, Embedder, Sentence};
use embed_server::http::{Options, State, serve};
use embed_server::model::{Config, HIDDEN, Tokenizer};
use serde_json::{Value, json};

use super::model;

/// The role of a server with candle.
pub const CANDLE: &str = "candle";
/// The role of a server with ONNX Runtime.
pub const ONNX: &str = "onnxruntime";
/// Tokens of a batch: what the embedding server takes, too.
const BATCH_TOKENS: usize = 2048;

/// An implementation of the model: embeddings of a batch, one behind the other.
type Compute = Box<dyn FnMut(&[Sentence], &mut Vec<f32>) -> Result<()> + Send>;

struct Peer(Compute);

impl Embedder for Peer {
    fn dimensions(&self) -> usize {
        HIDDEN
    }

    fn max_batch_tokens(&self) -> usize {
        BATCH_TOKENS
    }

    fn embed(&mut self, sentences: &[Sentence], out: &mut Vec<f32>) -> Result<(), EmbedError> {
        out.clear();
        let tokens = sentences.iter().map(Sentence::tokens).sum();
        let failed = |why: anyhow::Error| EmbedError::Device { act: "a peer", tokens, source: why.into() };
        (self.0)(sentences, out).map_err(failed)
    }
}

fn candle(reference: Reference) -> Compute {
    Box::new(move |sentences, out| {
        let ids: Vec<Vec<u32>> = sentences.iter().map(|sentence| sentence.ids().to_vec()).collect();
        out.extend(reference.embed_padded(&ids)?.into_iter().flatten());
        Ok(())
    })
}

/// A Python process with ONNX Runtime, a line a batch.
struct Onnx {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Onnx {
    fn start(cores: &str) -> Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("embed");
        let python: PathBuf = std::env::var_os("STASIS_BENCH_PYTHON")
            .context("STASIS_BENCH_PYTHON is not set: run `cargo xtask bench`")?
            .into();
        let graph = std::env::temp_dir().join(format!("stasis-bench-{}.onnx", std::process::id()));
        let made = Command::new(&python).arg(here.join("make_onnx.py")).arg(model()?).arg(&graph).output()?;
        ensure!(made.status.success(), "make_onnx.py: {}", String::from_utf8_lossy(&made.stderr));
        let mut child = Command::new(&python)
            .arg(here.join("onnx_peer.py"))
            .arg(&graph)
            .arg(cores)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("Cannot start {}", python.display()))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (to, from) = (to.context("no input")?, BufReader::new(from.context("no output")?));
        let mut onnx = Self { child, to, from };
        // The first line says what it is; the graph has been read by then.
        onnx.line()?;
        std::fs::remove_file(&graph)?;
        Ok(onnx)
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.from.read_line(&mut line)? > 0, "onnx_peer.py has ended");
        Ok(serde_json::from_str(&line)?)
    }

    fn ask(&mut self, sentences: &[Sentence], out: &mut Vec<f32>) -> Result<()> {
        let ids: Vec<&[u32]> = sentences.iter().map(Sentence::ids).collect();
        writeln!(self.to, "{}", json!({ "ids": ids }))?;
        let answer = self.line()?;
        let rows = answer["embeddings"].as_array().context("onnx_peer.py gave no embeddings")?;
        for row in rows {
            // CAST: it was f32 in the first place.
            out.extend(row.as_array().into_iter().flatten().filter_map(|v| Some(v.as_f64()? as f32)));
        }
        Ok(())
    }
}

impl Drop for Onnx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until it is killed.
pub fn play(engine: &str, arguments: &[String]) -> Result<()> {
    let cores = arguments.first().context("how many cores?")?;
    let directory = model()?;
    let config = Config::open(&directory)?;
    let tokenizer = Tokenizer::open(&directory, config.max_seq_length, false)?;
    let compute = match engine {
        CANDLE => candle(Reference::open(&directory)?),
        _ => {
            let mut onnx = Onnx::start(cores)?;
            Box::new(move |sentences: &[Sentence], out: &mut Vec<f32>| onnx.ask(sentences, out))
        }
    };
    let peer: Box<dyn Embedder> = Box::new(Peer(compute));
    let batcher = Arc::new(Batcher::start(vec![peer], BatchOptions::default())?);
    let options = Options { name: "all-MiniLM-L6-v2".to_owned(), ..Options::default() };
    let state = State::with(options, tokenizer, batcher);
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    threads.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("listening on {}", listener.local_addr()?);
        serve(listener, state, std::future::pending(), std::future::ready(())).await;
        Ok(())
    })
}
