// SPDX-License-Identifier: MIT OR Apache-2.0
//! What commands are told of where checkpoints go and come from.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use stasis_store::{Address, Codec, Compression, Key, StorePlace};

/// How chunks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Compress {
    /// Not at all.
    #[default]
    None,
    /// By LZ4: some gigabytes a second.
    Lz4,
    /// By zstd: shorter, some hundred megabytes a second.
    Zstd,
}

/// The key, and who is trusted without one.
#[derive(Clone, Debug, Default, Args)]
pub struct KeyArgs {
    /// Seal what is kept or sent (XChaCha20-Poly1305) with the key in this file: 32 bytes, or 64 hexadecimal digits; of its owner
    /// alone (0600). Whoever reads it needs the same.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArgs {
    /// The codec of somebody who reads.
    pub fn codec(&self) -> Result<Codec> {
        Ok(Codec { key: self.key_file.as_deref().map(Key::read).transpose()?, ..Codec::default() })
    }
}

/// How a store is made.
#[derive(Clone, Debug, Default, Args)]
pub struct ChunkArgs {
    /// How long chunks are as a rule, of a store that is made: a power of two from 1 to 512 (64 unless given). Smaller ones are found again
    /// more often, and are more files.
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(super) chunk_kib: Option<u32>,
}

impl ChunkArgs {
    pub(super) fn bytes(&self) -> Option<u32> {
        self.chunk_kib.map(|kib| kib << 10)
    }
}

/// How chunks are kept or sent.
#[derive(Clone, Debug, Default, Args)]
pub struct WriteArgs {
    /// Compress chunks that get an eighth shorter by it.
    #[arg(long, value_name = "METHOD", default_value = "none")]
    compress: Compress,
    #[command(flatten)]
    key: KeyArgs,
}

impl WriteArgs {
    /// The options, for a command that is to do the same again.
    pub(super) fn again(&self) -> String {
        match &self.key.key_file {
            Some(file) => format!(" --key-file {}", file.display()),
            None => String::new(),
        }
    }

    /// Whether anything else than plain bytes was asked for.
    fn is_given(&self) -> bool {
        self.compress != Compress::None || self.key.key_file.is_some()
    }

    /// The codec of somebody who writes.
    pub fn codec(&self) -> Result<Codec> {
        let compression = match self.compress {
            Compress::None => Compression::None,
            Compress::Lz4 => Compression::Lz4,
            Compress::Zstd => Compression::Zstd,
        };
        Ok(Codec { compression, ..self.key.codec()? })
    }
}

/// Where a checkpoint goes once it is complete.
#[derive(Clone, Debug, Default, Args)]
pub struct DestinationArgs {
    /// Keep the checkpoint in this store, each chunk once, under the name that is given in place of DIRECTORY. The store is made if it
    /// is not there.
    #[arg(long, value_name = "STORE", conflicts_with_all = ["to", "no_dump"])]
    pub(super) store: Option<StorePlace>,
    /// Send the checkpoint to a `stasis receive` or `stasis restore --from`: tcp://HOST:PORT, unix:PATH, or - for the standard
    /// output. DIRECTORY is removed when the receiver has said that it has all of it; a reader of the standard output says nothing, and DIRECTORY stays.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_dump")]
    pub(super) to: Option<Address>,
    /// Do not remove DIRECTORY when the receiver has all of it.
    #[arg(long, requires = "to")]
    pub(super) keep: bool,
    #[command(flatten)]
    pub(super) chunks: ChunkArgs,
    #[command(flatten)]
    pub(super) write: WriteArgs,
    #[command(flatten)]
    pub(super) network: NetworkArgs,
}

impl DestinationArgs {
    /// Makes sure that nobody believes in vain that something is sealed or compressed.
    pub(super) fn check(&self) -> Result<()> {
        let is_used = self.store.is_some() || self.to.is_some();
        ensure!(
            is_used || !self.write.is_given() && !self.network.trust_network,
            "--key-file, --compress and --trust-network are for --store and --to: without these, DIRECTORY has plain files"
        );
        ensure!(self.store.is_some() || self.chunks.chunk_kib.is_none(), "--chunk-kib is for --store");
        Ok(())
    }
}

/// Where a checkpoint comes from.
#[derive(Clone, Debug, Default, Args)]
pub struct SourceArgs {
    /// Take the checkpoint out of this store, by the name that is given in place of DIRECTORY.
    #[arg(long, value_name = "STORE", conflicts_with = "from")]
    pub(super) store: Option<StorePlace>,
    /// Receive the checkpoint into DIRECTORY first: listen at tcp://HOST:PORT or unix:PATH; with - the standard input is read.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) from: Option<Address>,
    #[command(flatten)]
    pub(super) key: KeyArgs,
    #[command(flatten)]
    pub(super) network: NetworkArgs,
}

impl SourceArgs {
    /// Makes sure that a key is used for something.
    pub(super) fn check(&self) -> Result<()> {
        let is_used = self.store.is_some() || self.from.is_some();
        ensure!(
            is_used || self.key.key_file.is_none() && !self.network.trust_network,
            "--key-file and --trust-network are for --store and --from: without these, DIRECTORY has plain files"
        );
        Ok(())
    }
}

/// Which senders and receivers are accepted over a network, and how long a command waits for them.
#[derive(Clone, Copy, Debug, Args)]
pub struct NetworkArgs {
    /// Use tcp:// without a key: whoever reaches the address reads the memory of the process, or has any program run here.
    #[arg(long)]
    pub(super) trust_network: bool,
    /// How long the other side may stay away, at first and when the connection broke.
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    wait_ms: u64,
}

impl Default for NetworkArgs {
    fn default() -> Self {
        Self { trust_network: false, wait_ms: 60_000 }
    }
}

impl NetworkArgs {
    /// How long the other side may stay away.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms)
    }
}
