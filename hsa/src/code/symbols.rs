// SPDX-License-Identifier: MIT OR Apache-2.0
//! Symbols of executables: kernels and variables.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use queues::words::count;
use stasis::code_object::{Global, Kernel};

use super::{Code, INVALID_SYMBOL, INVALID_SYMBOL_NAME, Loaded};
use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_ARGUMENT, OUT_OF_RESOURCES, Out, Outcome, each, export, string};
use crate::agents::Agents;
use crate::instance::instance;

/// What a kernel's descriptor is called in a code object, behind the kernel's name.
const DESCRIPTOR: &str = ".kd";
const VARIABLE_ALIGNMENT: u32 = 16;

/// A symbol.
#[derive(Clone, Debug)]
pub struct Symbol {
    loaded: Arc<Loaded>,
    name: String,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Kernel(Box<Kernel>),
    Variable(Global),
}

/// All symbols of a code object.
fn symbols_of(loaded: &Arc<Loaded>) -> Vec<Symbol> {
    let object = loaded.program.object();
    let symbol = |name: String, what| Symbol { loaded: Arc::clone(loaded), name, what };
    let kernels = object
        .kernels()
        .iter()
        .map(|kernel| symbol(kernel.metadata.symbol.clone(), What::Kernel(Box::new(kernel.clone()))));
    let globals =
        object.globals().iter().map(|global| symbol(global.name.clone(), What::Variable(global.clone())));
    kernels.chain(globals).collect()
}

/// The symbol of a name; a kernel's may lack the ending.
fn find(loaded: &Arc<Loaded>, name: &str) -> Option<Symbol> {
    let is_it = |symbol: &Symbol| {
        symbol.name == name
            || matches!(symbol.what, What::Kernel(_)) && symbol.name.strip_suffix(DESCRIPTOR) == Some(name)
    };
    symbols_of(loaded).into_iter().find(is_it)
}

impl Code {
    /// The handle of a symbol of an executable, the same each time.
    fn handle(&self, executable: &super::Executable, symbol: Symbol) -> Outcome<hsa_executable_symbol_t> {
        let place = (symbol.loaded.agent, symbol.name.clone());
        let mut state = executable.state.lock();
        if let Some(handle) = state.symbols.get(&place) {
            return Ok(hsa_executable_symbol_t { handle: *handle });
        }
        let handle = self.symbols.add(symbol).ok_or(OUT_OF_RESOURCES)?;
        state.symbols.insert(place, handle);
        Ok(hsa_executable_symbol_t { handle })
    }

    fn loaded_of(&self, executable: &super::Executable, agent: Option<usize>) -> Vec<Arc<Loaded>> {
        let state = executable.state.lock();
        let of_agent = |loaded: &&Arc<Loaded>| agent.is_none_or(|agent| loaded.agent == agent);
        state.loaded.iter().filter(of_agent).map(Arc::clone).collect()
    }
}

/// Finds a symbol by its name and agent; of any agent if none is named.
fn by_name(
    executable: hsa_executable_t,
    name: &str,
    agent: Option<hsa_agent_t>,
) -> Outcome<hsa_executable_symbol_t> {
    let instance = instance()?;
    let found = instance.code.executable(executable)?;
    let agent = agent.map(|agent| instance.agents.index(agent)).transpose()?;
    let all = instance.code.loaded_of(&found, agent);
    let symbol = all.iter().find_map(|loaded| find(loaded, name)).ok_or(INVALID_SYMBOL_NAME)?;
    instance.code.handle(&found, symbol)
}

fn put_attribute(symbol: &Symbol, attribute: hsa_executable_symbol_info_t, answer: Answer) -> Outcome {
    let Symbol { loaded, name, what } = symbol;
    match attribute {
        HSA_EXECUTABLE_SYMBOL_INFO_TYPE => answer.put(match what {
            What::Kernel(_) => HSA_SYMBOL_KIND_KERNEL,
            What::Variable(_) => HSA_SYMBOL_KIND_VARIABLE,
        }),
        HSA_EXECUTABLE_SYMBOL_INFO_NAME_LENGTH => answer.put(count(name.len())),
        HSA_EXECUTABLE_SYMBOL_INFO_NAME => answer.bytes(name.as_bytes()),
        HSA_EXECUTABLE_SYMBOL_INFO_MODULE_NAME_LENGTH => answer.put(0_u32),
        HSA_EXECUTABLE_SYMBOL_INFO_MODULE_NAME => Ok(()),
        HSA_EXECUTABLE_SYMBOL_INFO_AGENT => answer.put(Agents::handle(loaded.agent)),
        HSA_EXECUTABLE_SYMBOL_INFO_LINKAGE => answer.put(HSA_SYMBOL_LINKAGE_PROGRAM),
        HSA_EXECUTABLE_SYMBOL_INFO_IS_DEFINITION => answer.put(true),
        _ => match what {
            What::Kernel(kernel) => put_of_kernel(loaded, kernel, attribute, answer),
            What::Variable(global) => put_of_variable(loaded, global, attribute, answer),
        },
    }
}

fn put_of_kernel(
    loaded: &Loaded,
    kernel: &Kernel,
    attribute: hsa_executable_symbol_info_t,
    answer: Answer,
) -> Outcome {
    let metadata = &kernel.metadata;
    match attribute {
        HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT => answer.put(loaded.base() + kernel.descriptor_offset),
        HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_SIZE => answer.put(metadata.kernarg_bytes),
        HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_KERNARG_SEGMENT_ALIGNMENT => {
            answer.put(metadata.kernarg_align.max(16))
        }
        HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_GROUP_SEGMENT_SIZE => answer.put(metadata.group_bytes),
        HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_PRIVATE_SEGMENT_SIZE => answer.put(metadata.private_bytes),
        HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_DYNAMIC_CALLSTACK => answer.put(metadata.uses_dynamic_stack),
        HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_CALL_CONVENTION => answer.put(0_u32),
        _ => Err(INVALID_ARGUMENT),
    }
}

fn put_of_variable(
    loaded: &Loaded,
    global: &Global,
    attribute: hsa_executable_symbol_info_t,
    answer: Answer,
) -> Outcome {
    let is_written = |segment: &stasis::code_object::Segment| {
        segment.access.write && (segment.offset..segment.offset + segment.bytes).contains(&global.offset)
    };
    match attribute {
        HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_ADDRESS => answer.put(loaded.base() + global.offset),
        HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_ALLOCATION => answer.put(HSA_VARIABLE_ALLOCATION_AGENT),
        HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_SEGMENT => answer.put(HSA_VARIABLE_SEGMENT_GLOBAL),
        HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_ALIGNMENT => answer.put(VARIABLE_ALIGNMENT),
        HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_SIZE => {
            answer.put(u32::try_from(global.bytes).unwrap_or(u32::MAX))
        }
        HSA_EXECUTABLE_SYMBOL_INFO_VARIABLE_IS_CONST => {
            answer.put(!loaded.program.object().plan().segments().iter().any(is_written))
        }
        _ => Err(INVALID_ARGUMENT),
    }
}

type SymbolCallback =
    unsafe extern "C" fn(hsa_executable_t, hsa_executable_symbol_t, *mut c_void) -> hsa_status_t;
type AgentSymbolCallback =
    unsafe extern "C" fn(hsa_executable_t, hsa_agent_t, hsa_executable_symbol_t, *mut c_void) -> hsa_status_t;

/// Handles of all symbols of an executable, of an agent if one is named.
fn all(executable: hsa_executable_t, agent: Option<usize>) -> Outcome<Vec<hsa_executable_symbol_t>> {
    let instance = instance()?;
    let found = instance.code.executable(executable)?;
    let loaded = instance.code.loaded_of(&found, agent);
    let symbols = loaded.iter().flat_map(symbols_of);
    symbols.map(|symbol| instance.code.handle(&found, symbol)).collect()
}

export! {
    /// The symbol of a name.
    fn hsa_executable_get_symbol_by_name(
        executable: hsa_executable_t,
        symbol_name: *const c_char,
        agent: *const hsa_agent_t,
        symbol: *mut hsa_executable_symbol_t,
    ) {
        let instance = instance()?;
        instance.code.executable(executable)?;
        // SAFETY: the caller's, by the header.
        let (name, out) = unsafe { (string(symbol_name)?, Out::new(symbol)?) };
        // SAFETY: as above; null for no agent.
        let agent = (!agent.is_null()).then(|| unsafe { agent.read_unaligned() });
        out.put(by_name(executable, name, agent)?);
        Ok(())
    }

    /// The same by the old function.
    fn hsa_executable_get_symbol(
        executable: hsa_executable_t,
        _module_name: *const c_char,
        symbol_name: *const c_char,
        agent: hsa_agent_t,
        _call_convention: i32,
        symbol: *mut hsa_executable_symbol_t,
    ) {
        let instance = instance()?;
        instance.code.executable(executable)?;
        // SAFETY: the caller's, by the header.
        let (name, out) = unsafe { (string(symbol_name)?, Out::new(symbol)?) };
        out.put(by_name(executable, name, Some(agent))?);
        Ok(())
    }

    /// An attribute of a symbol.
    fn hsa_executable_symbol_get_info(
        executable_symbol: hsa_executable_symbol_t,
        attribute: hsa_executable_symbol_info_t,
        value: *mut c_void,
    ) {
        let symbol = instance()?.code.symbols.get(executable_symbol.handle).ok_or(INVALID_SYMBOL)?;
        // SAFETY: the caller's, by the header.
        put_attribute(&symbol, attribute, unsafe { Answer::new(value) }?)
    }

    /// Calls back for every symbol.
    fn hsa_executable_iterate_symbols(
        executable: hsa_executable_t,
        callback: Option<SymbolCallback>,
        data: *mut c_void,
    ) {
        instance()?.code.executable(executable)?;
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's function, with the caller's data.
        each(all(executable, None)?, |symbol| unsafe { callback(executable, symbol, data) })
    }

    /// Calls back for every symbol of an agent.
    fn hsa_executable_iterate_agent_symbols(
        executable: hsa_executable_t,
        agent: hsa_agent_t,
        callback: Option<AgentSymbolCallback>,
        data: *mut c_void,
    ) {
        let instance = instance()?;
        instance.code.executable(executable)?;
        let index = instance.agents.index(agent)?;
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's function, with the caller's data.
        each(all(executable, Some(index))?, |symbol| unsafe { callback(executable, agent, symbol, data) })
    }

    /// Calls back for every symbol that belongs to no agent: there is none.
    fn hsa_executable_iterate_program_symbols(
        executable: hsa_executable_t,
        callback: Option<SymbolCallback>,
        _data: *mut c_void,
    ) {
        instance()?.code.executable(executable)?;
        callback.map(drop).ok_or(INVALID_ARGUMENT)
    }
}
