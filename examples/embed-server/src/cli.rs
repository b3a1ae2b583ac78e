// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's options.
//!
//! INVARIANT: what [`Args::check`] let pass is consistent: a sentence of the greatest length fits in a batch and in
//! the queue.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderValue;
use clap::builder::{RangedI64ValueParser, RangedU64ValueParser};
use clap::{Parser, ValueEnum};
use embed_server::batch::{Backoff, BatchOptions};
use embed_server::engine::Precision;
use embed_server::http::{ConnectionLimits, Keys, Limits, Options};
use embed_server::model::Config;

/// Sentence embeddings over HTTP, OpenAI's interface, from a model on the runtime's agents.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Address to listen on; port 0 takes a free one, which stdout tells
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// Directory of the model: config.json, sentence_bert_config.json, tokenizer.json, model.safetensors
    #[arg(long, env = "STASIS_MODEL", value_name = "DIR")]
    pub model: PathBuf,
    /// Name that clients know the model by
    #[arg(long, default_value = "all-MiniLM-L6-v2", value_parser = name)]
    pub name: String,
    /// Another name that clients may know the model by; can be given several times
    #[arg(long = "alias", value_parser = name, value_name = "NAME")]
    pub aliases: Vec<String>,
    /// Keys that clients may have, separated by commas; without any, no client needs one. Better in the environment:
    /// every user of the machine can see a command line
    #[arg(long = "api-key", env = "EMBED_API_KEY", hide_env_values = true, value_delimiter = ',', value_parser = key, value_name = "KEY")]
    pub api_keys: Vec<String>,
    /// Origin of web pages whose browsers may send requests, or * for all; can be given several times
    #[arg(long = "cors-origin", value_parser = origin, value_name = "ORIGIN")]
    pub cors_origins: Vec<HeaderValue>,
    /// Keep the weights f32, as the file has them, instead of f16
    #[arg(long)]
    pub f32: bool,
    /// Serve at once: without the batch of full size and the short one that show that memory and kernels suffice
    #[arg(long)]
    pub no_warm_up: bool,
    /// Tokens of a batch
    #[arg(long, default_value_t = 2048, value_parser = at_least(2), value_name = "TOKENS")]
    pub max_batch_tokens: usize,
    /// Tokens of a sentence [default: what the model was trained with]
    #[arg(long, value_parser = at_least(2), value_name = "TOKENS")]
    pub max_tokens: Option<usize>,
    /// Cut longer texts instead of refusing them
    #[arg(long)]
    pub truncate: bool,
    /// Tokens that may wait; a request over it gets 429, or 400 if it is larger by itself
    #[arg(long, default_value_t = BatchOptions::default().queue_tokens, value_parser = at_least(2), value_name = "TOKENS")]
    pub queue_tokens: usize,
    /// Sentences that may wait; a request over it gets 429, or 400 if it has more by itself
    #[arg(long, default_value_t = BatchOptions::default().queue_sentences, value_parser = at_least(1), value_name = "SENTENCES")]
    pub queue_sentences: usize,
    /// How long an idle agent waits for a batch to fill, in microseconds
    #[arg(long, default_value_t = 0, value_name = "US")]
    pub batch_wait_us: u32,
    /// How long a request may take, in seconds for which the process runs
    #[arg(long, default_value_t = 60, value_parser = seconds(), value_name = "S")]
    pub request_timeout_s: u32,
    /// How long a shutdown waits for the requests that were begun, in seconds
    #[arg(long, default_value_t = 30, value_name = "S")]
    pub shutdown_timeout_s: u32,
    /// Inputs of a request
    #[arg(long, default_value_t = Limits::default().inputs, value_parser = at_least(1), value_name = "INPUTS")]
    pub max_inputs: usize,
    /// Bytes of a request's body
    #[arg(long, default_value_t = Limits::default().body_bytes, value_parser = at_least(1), value_name = "BYTES")]
    pub max_body_bytes: usize,
    /// Bytes of all bodies that are held at a time; more wait
    #[arg(long, default_value_t = Limits::default().buffered_bytes, value_parser = at_least(1), value_name = "BYTES")]
    pub max_buffered_bytes: usize,
    /// Connections at a time; more get 503
    #[arg(long, default_value_t = ConnectionLimits::default().connections, value_parser = at_least(1), value_name = "CONNECTIONS")]
    pub max_connections: usize,
    /// How long the headers of a request may take, in seconds for which the process runs
    #[arg(long, default_value_t = 10, value_parser = seconds(), value_name = "S")]
    pub header_timeout_s: u32,
    /// How long a connection may be idle after an answer, likewise
    #[arg(long, default_value_t = 75, value_parser = seconds(), value_name = "S")]
    pub idle_timeout_s: u32,
    /// How long a client may take nothing of its answer, likewise
    #[arg(long, default_value_t = 30, value_parser = seconds(), value_name = "S")]
    pub write_timeout_s: u32,
    /// What to do when the device is lost
    #[arg(long, value_enum, default_value_t = OnDeviceLost::Exit, value_name = "ACTION")]
    pub on_device_lost: OnDeviceLost,
    /// Attempts in a row to open a lost device, 0.1 s to 10 s apart
    #[arg(long, default_value_t = Backoff::default().attempts, value_name = "ATTEMPTS")]
    pub reopen_attempts: u32,
    /// Threads that serve sockets, and as many more that tokenize
    #[arg(long, default_value_t = 2, value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    pub threads: usize,
}

/// What is done when no agent is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnDeviceLost {
    /// Answer pending requests with 503 and end with status 69: a supervisor starts the server again
    Exit,
    /// Open it again, with its weights, and keep the port
    Reopen,
}

fn seconds() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

fn key(key: &str) -> Result<String, &'static str> {
    let fit = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    fit.then(|| key.to_owned()).ok_or("a key is not empty and has no spaces")
}

fn origin(origin: &str) -> Result<HeaderValue, &'static str> {
    let fit = origin == "*" || (origin.contains("://") && !origin.ends_with('/'));
    let value = fit.then(|| HeaderValue::from_str(origin).ok()).flatten();
    value.ok_or("an origin is * or like https://example.org, without a path")
}

fn at_least(least: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..)
}

fn name(name: &str) -> Result<String, &'static str> {
    let fit = !name.is_empty() && !name.chars().any(|c| c.is_control() || c.is_whitespace());
    fit.then(|| name.to_owned()).ok_or("a model's name is not empty and has no spaces")
}

/// Options that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgsError {
    /// Sentences longer than the model has positions for.
    #[error("--max-tokens is {asked}, the model has positions for {positions}")]
    Positions {
        /// Tokens asked for.
        asked: usize,
        /// Tokens there are positions for.
        positions: usize,
    },
    /// A room too small for one sentence.
    #[error("{option} is {room}, less than the {tokens} tokens that a sentence may have (--max-tokens)")]
    Room {
        /// The option.
        option: &'static str,
        /// Its value.
        room: usize,
        /// Tokens of a sentence.
        tokens: usize,
    },
}

impl Args {
    /// Tokens that a sentence may have, after a check of the options against each other and the model.
    ///
    /// # Errors
    /// [`ArgsError`].
    pub fn check(&self, config: &Config) -> Result<usize, ArgsError> {
        let positions = config.max_position_embeddings;
        let tokens = self.max_tokens.unwrap_or(config.max_seq_length.min(positions));
        if tokens > positions {
            return Err(ArgsError::Positions { asked: tokens, positions });
        }
        let rooms = [("--max-batch-tokens", self.max_batch_tokens), ("--queue-tokens", self.queue_tokens)];
        match rooms.into_iter().find(|(_, room)| *room < tokens) {
            Some((option, room)) => Err(ArgsError::Room { option, room, tokens }),
            None => Ok(tokens),
        }
    }

    /// What a request may ask for.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            inputs: self.max_inputs,
            body_bytes: self.max_body_bytes,
            buffered_bytes: self.max_buffered_bytes,
            threads: self.threads,
            time: Duration::from_secs(self.request_timeout_s.into()),
        }
    }

    /// What a connection may take.
    #[must_use]
    pub fn connections(&self) -> ConnectionLimits {
        let seconds = |time: u32| Duration::from_secs(time.into());
        ConnectionLimits {
            connections: self.max_connections,
            head: seconds(self.header_timeout_s),
            idle: seconds(self.idle_timeout_s),
            stall: seconds(self.write_timeout_s),
        }
    }

    /// The server's settings.
    #[must_use]
    pub fn service(&self) -> Options {
        Options {
            name: self.name.clone(),
            aliases: self.aliases.clone(),
            limits: self.limits(),
            connections: self.connections(),
            keys: Keys::new(self.api_keys.iter().map(String::as_str)),
            origins: self.cors_origins.clone(),
            precision: self.precision().name(),
        }
    }

    /// The precision of the weights.
    #[must_use]
    pub fn precision(&self) -> Precision {
        if self.f32 { Precision::F32 } else { Precision::F16 }
    }

    /// How often a lost device is opened again.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        Backoff { attempts: self.reopen_attempts, ..Backoff::default() }
    }

    /// The queue's bounds.
    #[must_use]
    pub fn batching(&self) -> BatchOptions {
        let wait = Duration::from_micros(self.batch_wait_us.into());
        BatchOptions {
            queue_tokens: self.queue_tokens,
            queue_sentences: self.queue_sentences,
            wait,
            backoff: self.backoff(),
        }
    }

    /// How long a shutdown waits.
    #[must_use]
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.shutdown_timeout_s.into())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(args: &[&str]) -> Result<Args, String> {
        Args::try_parse_from([&["embed-server", "--model", "m"], args].concat()).map_err(|e| e.to_string())
    }

    fn config() -> Config {
        Config {
            hidden_size: 384,
            intermediate_size: 1536,
            num_attention_heads: 12,
            num_hidden_layers: 6,
            vocab_size: 30522,
            max_position_embeddings: 512,
            layer_norm_eps: 1e-12,
            hidden_act: "gelu".to_owned(),
            max_seq_length: 256,
        }
    }

    #[test]
    fn options_are_consistent_with_clap() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_take_the_length_the_model_was_trained_with() {
        let args = parse(&[]).unwrap();

        assert_eq!(args.check(&config()), Ok(256));
        assert_eq!(args.limits(), Limits::default());
        assert_eq!(args.batching(), BatchOptions::default());
        assert_eq!(args.connections(), ConnectionLimits::default());
        assert_eq!(args.on_device_lost, OnDeviceLost::Exit);
    }

    #[test]
    fn keys_are_separated_by_commas_and_not_shown() {
        let args = parse(&["--api-key", "one,other", "--api-key", "third"]).unwrap();

        assert_eq!(args.api_keys, ["one", "other", "third"]);
        let shown = format!("{:?}", args.service());
        assert!(!shown.contains("other"), "{shown}");
    }

    #[test]
    fn options_that_do_not_fit_together_are_named() {
        let check = |args: &[&str]| parse(args).unwrap().check(&config()).unwrap_err().to_string();

        assert_eq!(check(&["--max-tokens", "513"]), "--max-tokens is 513, the model has positions for 512");
        let batch = check(&["--max-batch-tokens", "128"]);
        assert!(batch.starts_with("--max-batch-tokens is 128, less than the 256 tokens"), "{batch}");
        let queue = check(&["--queue-tokens", "511", "--max-tokens", "512"]);
        assert!(queue.starts_with("--queue-tokens is 511, less than the 512 tokens"), "{queue}");
    }

    #[test]
    fn wrong_values_name_their_option() {
        for (option, value) in [
            ("--listen", "8080"),
            ("--name", "two words"),
            ("--max-batch-tokens", "1"),
            ("--max-tokens", "many"),
            ("--queue-sentences", "0"),
            ("--batch-wait-us", "-1"),
            ("--request-timeout-s", "0"),
            ("--max-inputs", "0"),
            ("--threads", "0"),
            ("--max-connections", "0"),
            ("--header-timeout-s", "0"),
            ("--alias", "two words"),
            ("--api-key", "two words"),
            ("--cors-origin", "example.org"),
            ("--cors-origin", "https://example.org/"),
            ("--on-device-lost", "wait"),
        ] {
            let error = parse(&[&format!("{option}={value}")]).unwrap_err();
            assert!(error.contains(option) && error.contains(value), "{error}");
        }
    }
}
