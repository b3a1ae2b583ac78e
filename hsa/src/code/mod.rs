// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code objects: readers, executables, symbols, and AMD's extension that tells of what is loaded.
//!
//! INVARIANT: what a reader has was copied, so nothing of the program's is read after the call; a symbol has one handle for as long as its
//! executable lives.
#![allow(unsafe_code)]

mod executables;
pub mod loader_table;
mod old;
mod readers;
mod symbols;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use self::symbols::Symbol;
use crate::abi::Status;
use crate::abi::declared::*;
use crate::handles::{Kind, Table};

pub const INVALID_EXECUTABLE: Status = Status(HSA_STATUS_ERROR_INVALID_EXECUTABLE);
pub const INVALID_READER: Status = Status(HSA_STATUS_ERROR_INVALID_CODE_OBJECT_READER);
pub const INVALID_CODE_OBJECT: Status = Status(HSA_STATUS_ERROR_INVALID_CODE_OBJECT);
pub const INVALID_SYMBOL: Status = Status(HSA_STATUS_ERROR_INVALID_EXECUTABLE_SYMBOL);
pub const INVALID_SYMBOL_NAME: Status = Status(HSA_STATUS_ERROR_INVALID_SYMBOL_NAME);
pub const FROZEN: Status = Status(HSA_STATUS_ERROR_FROZEN_EXECUTABLE);

/// A file that was read.
#[derive(Clone, Debug)]
pub struct Reader {
    pub bytes: Arc<[u8]>,
    /// Where it came from, as `hsa_ven_amd_loader` names it.
    pub uri: String,
}

/// Code objects that are loaded together.
#[derive(Debug)]
pub struct Executable {
    pub profile: hsa_profile_t,
    pub rounding: hsa_default_float_rounding_mode_t,
    pub state: Mutex<State>,
}

/// What changes of an executable.
#[derive(Debug, Default)]
pub struct State {
    pub frozen: bool,
    pub loaded: Vec<Arc<Loaded>>,
    /// Handles of symbols that were asked for, by the agent's position and the name.
    pub symbols: BTreeMap<(usize, String), u64>,
    /// Variables that the program has defined, by the agent's position (none for all) and the name.
    pub defined: BTreeMap<(Option<usize>, String), u64>,
}

/// A code object on an agent.
#[derive(Debug)]
pub struct Loaded {
    pub executable: u64,
    /// The agent's position.
    pub agent: usize,
    pub program: stasis::Executable,
    pub reader: Reader,
    /// The image as it was placed, for the host to read.
    pub image: Box<[u8]>,
}

impl Loaded {
    pub fn base(&self) -> u64 {
        self.program.base()
    }

    pub fn bytes(&self) -> u64 {
        self.image.len() as u64
    }
}

/// All code of the program's.
#[derive(Debug)]
pub struct Code {
    readers: Table<Reader>,
    executables: Table<Executable>,
    loaded: Table<Loaded>,
    symbols: Table<Symbol>,
    objects: Table<Reader>,
}

impl Code {
    pub fn new() -> Self {
        Code {
            readers: Table::new(Kind::Reader),
            executables: Table::new(Kind::Executable),
            loaded: Table::new(Kind::LoadedCodeObject),
            symbols: Table::new(Kind::Symbol),
            objects: Table::new(Kind::CodeObject),
        }
    }

    pub fn clear(&self) {
        self.symbols.clear();
        self.loaded.clear();
        self.executables.clear();
        self.readers.clear();
        self.objects.clear();
    }

    /// The code object whose image holds an agent's address, with its handle.
    pub fn at(&self, address: u64) -> Option<(u64, Arc<Loaded>)> {
        let holds = |loaded: &Loaded| {
            address.checked_sub(loaded.base()).is_some_and(|offset| offset < loaded.bytes())
        };
        self.loaded.all().into_iter().find(|(_, loaded)| holds(loaded))
    }
}
