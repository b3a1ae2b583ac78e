// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executables: made, loaded, frozen, destroyed.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use stasis::LoadError;
use stasis::code_object::CodeObjectError;

use super::{
    Executable, FROZEN, INVALID_CODE_OBJECT, INVALID_EXECUTABLE, INVALID_READER, Loaded, Reader, State,
};
use crate::abi::declared::*;
use crate::abi::{Answer, ERROR, INVALID_ARGUMENT, OUT_OF_RESOURCES, Out, Outcome, Status, export, string};
use crate::instance::{Instance, instance};
use crate::memory::{Block, address_of, status_of};

fn make(
    instance: &Instance,
    profile: hsa_profile_t,
    rounding: hsa_default_float_rounding_mode_t,
    frozen: bool,
) -> Outcome<hsa_executable_t> {
    let rounds = [
        HSA_DEFAULT_FLOAT_ROUNDING_MODE_DEFAULT,
        HSA_DEFAULT_FLOAT_ROUNDING_MODE_ZERO,
        HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR,
    ];
    if ![HSA_PROFILE_BASE, HSA_PROFILE_FULL].contains(&profile) || !rounds.contains(&rounding) {
        return Err(INVALID_ARGUMENT);
    }
    let state = State { frozen, ..State::default() };
    let handle = instance.code.executables.add(Executable { profile, rounding, state: state.into() });
    Ok(hsa_executable_t { handle: handle.ok_or(OUT_OF_RESOURCES)? })
}

impl super::Code {
    /// The executable of a handle.
    ///
    /// # Errors
    /// HSA_STATUS_ERROR_INVALID_EXECUTABLE.
    pub fn executable(&self, executable: hsa_executable_t) -> Outcome<Arc<Executable>> {
        self.executables.get(executable.handle).ok_or(INVALID_EXECUTABLE)
    }
}

/// The status for a code object that was not loaded.
fn status(error: LoadError) -> Status {
    tracing::warn!(target: "hsa", error = %stasis::explain(&error), "a code object was not loaded");
    match error {
        LoadError::CodeObject(CodeObjectError::WrongTarget { .. } | CodeObjectError::WrongFeature { .. }) => {
            Status(HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS)
        }
        LoadError::CodeObject(CodeObjectError::UndefinedSymbol { .. }) => {
            Status(HSA_STATUS_ERROR_VARIABLE_UNDEFINED)
        }
        LoadError::CodeObject(_) | LoadError::Descriptor { .. } => INVALID_CODE_OBJECT,
        LoadError::Memory(error) => status_of(error),
        LoadError::Lost(_) | LoadError::AgentLost(_) => ERROR,
        _ => OUT_OF_RESOURCES,
    }
}

/// Loads a code object on an agent.
fn load(
    instance: &Instance,
    (handle, executable): (hsa_executable_t, &Executable),
    agent: hsa_agent_t,
    reader: &Reader,
) -> Outcome<hsa_loaded_code_object_t> {
    let index = instance.agents.index(agent)?;
    let gpu = instance.agents.gpu(agent)?;
    let mut state = executable.state.lock();
    if state.frozen {
        return Err(FROZEN);
    }
    let defined = |name: &str| {
        let of = |agent| state.defined.get(&(agent, name.to_owned())).copied();
        of(Some(index)).or_else(|| of(None))
    };
    let program = stasis::Executable::load_with(gpu, &reader.bytes, defined).map_err(status)?;
    let image =
        program.object().plan().relocate_with(program.base(), defined).map_err(|_| INVALID_CODE_OBJECT)?;
    let loaded = Arc::new(Loaded {
        executable: handle.handle,
        agent: index,
        program,
        reader: reader.clone(),
        image: image.into(),
    });
    let added = instance.code.loaded.add_shared(Arc::clone(&loaded)).ok_or(OUT_OF_RESOURCES)?;
    instance.memory.add(Block::code(&loaded));
    state.loaded.push(loaded);
    Ok(hsa_loaded_code_object_t { handle: added })
}

/// Puts a variable's address into an executable.
///
/// # Safety
/// The name is null or the program's string.
unsafe fn define(
    executable: hsa_executable_t,
    agent: Option<hsa_agent_t>,
    name: *const c_char,
    address: *mut c_void,
) -> Outcome {
    let instance = instance()?;
    let executable = instance.code.executable(executable)?;
    let agent = agent.map(|agent| instance.agents.index(agent)).transpose()?;
    // SAFETY: by contract.
    let name = unsafe { string(name) }?;
    let mut state = executable.state.lock();
    if state.frozen {
        return Err(FROZEN);
    }
    let place = (agent, name.to_owned());
    if state.defined.contains_key(&place) {
        return Err(Status(HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED));
    }
    state.defined.insert(place, address_of(address));
    Ok(())
}

export! {
    /// Makes an executable.
    fn hsa_executable_create(
        profile: hsa_profile_t,
        executable_state: hsa_executable_state_t,
        _options: *const c_char,
        executable: *mut hsa_executable_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(executable) }?;
        let frozen = match executable_state {
            HSA_EXECUTABLE_STATE_UNFROZEN => false,
            HSA_EXECUTABLE_STATE_FROZEN => true,
            _ => return Err(INVALID_ARGUMENT),
        };
        out.put(make(instance, profile, HSA_DEFAULT_FLOAT_ROUNDING_MODE_DEFAULT, frozen)?);
        Ok(())
    }

    /// Makes an executable.
    fn hsa_executable_create_alt(
        profile: hsa_profile_t,
        default_float_rounding_mode: hsa_default_float_rounding_mode_t,
        _options: *const c_char,
        executable: *mut hsa_executable_t,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(executable) }?;
        out.put(make(instance, profile, default_float_rounding_mode, false)?);
        Ok(())
    }

    /// Destroys an executable; what it has loaded is unloaded.
    fn hsa_executable_destroy(executable: hsa_executable_t) {
        let instance = instance()?;
        let code = &instance.code;
        let destroyed = code.executables.remove(executable.handle).ok_or(INVALID_EXECUTABLE)?;
        let state = std::mem::take(&mut *destroyed.state.lock());
        for symbol in state.symbols.into_values() {
            code.symbols.remove(symbol);
        }
        for (handle, loaded) in code.loaded.all() {
            if loaded.executable == executable.handle {
                instance.memory.forget(loaded.base());
                code.loaded.remove(handle);
            }
        }
        Ok(())
    }

    /// Loads a code object on an agent.
    fn hsa_executable_load_agent_code_object(
        executable: hsa_executable_t,
        agent: hsa_agent_t,
        code_object_reader: hsa_code_object_reader_t,
        _options: *const c_char,
        loaded_code_object: *mut hsa_loaded_code_object_t,
    ) {
        let instance = instance()?;
        let found = instance.code.executable(executable)?;
        instance.agents.get(agent)?;
        let reader = instance.code.readers.get(code_object_reader.handle).ok_or(INVALID_READER)?;
        let loaded = load(instance, (executable, &found), agent, &reader)?;
        // SAFETY: the caller's, by the header; null where it is not wanted.
        if let Ok(out) = unsafe { Out::new(loaded_code_object) } {
            out.put(loaded);
        }
        Ok(())
    }

    /// Loads code for all agents: a code object has code for agents only.
    fn hsa_executable_load_program_code_object(
        executable: hsa_executable_t,
        code_object_reader: hsa_code_object_reader_t,
        _options: *const c_char,
        _loaded_code_object: *mut hsa_loaded_code_object_t,
    ) {
        let instance = instance()?;
        let found = instance.code.executable(executable)?;
        instance.code.readers.get(code_object_reader.handle).ok_or(INVALID_READER)?;
        if found.state.lock().frozen { Err(FROZEN) } else { Err(INVALID_CODE_OBJECT) }
    }

    /// Loads a code object of the old kind on an agent.
    fn hsa_executable_load_code_object(
        executable: hsa_executable_t,
        agent: hsa_agent_t,
        code_object: hsa_code_object_t,
        _options: *const c_char,
    ) {
        let instance = instance()?;
        let found = instance.code.executable(executable)?;
        instance.agents.get(agent)?;
        let reader = instance.code.objects.get(code_object.handle).ok_or(INVALID_CODE_OBJECT)?;
        load(instance, (executable, &found), agent, &reader).map(drop)
    }

    /// Says that nothing more will be loaded.
    fn hsa_executable_freeze(executable: hsa_executable_t, _options: *const c_char) {
        let found = instance()?.code.executable(executable)?;
        let mut state = found.state.lock();
        if std::mem::replace(&mut state.frozen, true) { Err(FROZEN) } else { Ok(()) }
    }

    /// An attribute of an executable.
    fn hsa_executable_get_info(executable: hsa_executable_t, attribute: hsa_executable_info_t, value: *mut c_void) {
        let found = instance()?.code.executable(executable)?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        match attribute {
            HSA_EXECUTABLE_INFO_PROFILE => answer.put(found.profile),
            HSA_EXECUTABLE_INFO_STATE if found.state.lock().frozen => answer.put(HSA_EXECUTABLE_STATE_FROZEN),
            HSA_EXECUTABLE_INFO_STATE => answer.put(HSA_EXECUTABLE_STATE_UNFROZEN),
            HSA_EXECUTABLE_INFO_DEFAULT_FLOAT_ROUNDING_MODE => answer.put(found.rounding),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    /// Says where a variable of all agents is, that code objects loaded later refer to.
    fn hsa_executable_global_variable_define(
        executable: hsa_executable_t,
        variable_name: *const c_char,
        address: *mut c_void,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { define(executable, None, variable_name, address) }
    }

    /// Says where a variable of an agent is, that code objects loaded later refer to.
    fn hsa_executable_agent_global_variable_define(
        executable: hsa_executable_t,
        agent: hsa_agent_t,
        variable_name: *const c_char,
        address: *mut c_void,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { define(executable, Some(agent), variable_name, address) }
    }

    /// Says where a constant of an agent is, that code objects loaded later refer to.
    fn hsa_executable_readonly_variable_define(
        executable: hsa_executable_t,
        agent: hsa_agent_t,
        variable_name: *const c_char,
        address: *mut c_void,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { define(executable, Some(agent), variable_name, address) }
    }

    /// Checks an executable: what is loaded is right.
    fn hsa_executable_validate(executable: hsa_executable_t, result: *mut u32) {
        instance()?.code.executable(executable)?;
        // SAFETY: the caller's, by the header.
        unsafe { Out::new(result) }?.put(0);
        Ok(())
    }

    /// Checks an executable: what is loaded is right.
    fn hsa_executable_validate_alt(executable: hsa_executable_t, _options: *const c_char, result: *mut u32) {
        instance()?.code.executable(executable)?;
        // SAFETY: the caller's, by the header.
        unsafe { Out::new(result) }?.put(0);
        Ok(())
    }
}
