// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the vendor's runtime sees of this machine.
#![allow(unsafe_code)]

use crate::loader::LoadError;
use crate::loader::Loader;
use crate::loader::SearchOptions;
use crate::raw;
use crate::status::Status;
use std::ffi::CStr;
use std::ffi::c_void;
use std::ptr;
use thiserror::Error;

/// The longest attribute that is text is 64 bytes; an instruction set's name may be longer.
const TEXT_BYTES: usize = 64;
const ISA_NAME_LIMIT: u32 = 4096;

/// The vendor's runtime could not be asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VendorError {
    /// There is none.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// One of its functions failed.
    #[error("{symbol} of the vendor's HSA runtime failed with {status}: {text}")]
    Call {
        /// The function.
        symbol: &'static str,
        /// What it returned.
        status: Status,
        /// What the library says about it.
        text: String,
    },
}

/// `hsa_device_type_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceType {
    /// A processor of the host.
    Cpu,
    /// A GPU.
    Gpu,
    /// A signal processor.
    Dsp,
    /// A type newer than this library.
    Other(u32),
}

/// An agent as the vendor's runtime describes it. Attributes that it does not know are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VendorAgent {
    /// `gfx1100`, or the name of the CPU.
    pub name: String,
    /// The marketing name.
    pub product: String,
    /// The vendor's name.
    pub vendor: String,
    /// `GPU-` or `CPU-` and 16 hexadecimal digits or `XX`.
    pub uuid: String,
    /// What it is.
    pub device_type: DeviceType,
    /// Names of its instruction sets, `amdgcn-amd-amdhsa--gfx1100`; empty for CPUs and old libraries.
    pub isas: Vec<String>,
}

/// The vendor's library, ready to be asked.
#[derive(Debug)]
pub struct VendorRuntime {
    loader: Loader,
}

impl VendorRuntime {
    /// Loads the library; it is started by the questions only.
    ///
    /// # Errors
    /// [`VendorError::Load`] with every path tried.
    pub fn open(options: &SearchOptions) -> Result<Self, VendorError> {
        Ok(Self { loader: Loader::open(options)? })
    }

    /// Where the library came from.
    #[must_use]
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Starts the runtime, lists its agents and shuts it down.
    ///
    /// # Errors
    /// [`VendorError::Call`]; without a GPU driver `hsa_init` fails with `HSA_STATUS_ERROR_OUT_OF_RESOURCES`.
    pub fn agents(&self) -> Result<Vec<VendorAgent>, VendorError> {
        let session = Session::start(self)?;
        let mut handles: Vec<raw::hsa_agent_t> = Vec::new();
        let symbols = self.loader.symbols();
        // SAFETY: the runtime is started; the callback gets the vector, which outlives the call.
        let status =
            unsafe { (symbols.hsa_iterate_agents)(Some(push_agent), ptr::from_mut(&mut handles).cast()) };
        self.check("hsa_iterate_agents", status)?;
        let agents = handles.into_iter().map(|agent| self.describe(agent)).collect::<Result<_, _>>()?;
        session.end()?;
        Ok(agents)
    }

    fn describe(&self, agent: raw::hsa_agent_t) -> Result<VendorAgent, VendorError> {
        let mut device: raw::hsa_device_type_t = 0;
        // SAFETY: the attribute is one hsa_device_type_t.
        let status = unsafe {
            (self.loader.symbols().hsa_agent_get_info)(
                agent,
                raw::HSA_AGENT_INFO_DEVICE,
                ptr::from_mut(&mut device).cast(),
            )
        };
        self.check("hsa_agent_get_info", status)?;
        Ok(VendorAgent {
            name: self.text(agent, raw::HSA_AGENT_INFO_NAME)?,
            vendor: self.text(agent, raw::HSA_AGENT_INFO_VENDOR_NAME)?,
            // AMD's own attributes are unknown to other vendors' runtimes.
            product: self.text(agent, raw::HSA_AMD_AGENT_INFO_PRODUCT_NAME).unwrap_or_default(),
            uuid: self.text(agent, raw::HSA_AMD_AGENT_INFO_UUID).unwrap_or_default(),
            device_type: match device {
                raw::HSA_DEVICE_TYPE_CPU => DeviceType::Cpu,
                raw::HSA_DEVICE_TYPE_GPU => DeviceType::Gpu,
                raw::HSA_DEVICE_TYPE_DSP => DeviceType::Dsp,
                other => DeviceType::Other(other),
            },
            isas: self.isas(agent),
        })
    }

    fn text(&self, agent: raw::hsa_agent_t, attribute: u32) -> Result<String, VendorError> {
        let mut buffer = [0_u8; TEXT_BYTES + 1];
        // SAFETY: textual attributes of agents have at most 64 bytes, and the buffer one more that stays zero.
        let status = unsafe {
            (self.loader.symbols().hsa_agent_get_info)(agent, attribute, buffer.as_mut_ptr().cast())
        };
        self.check("hsa_agent_get_info", status)?;
        Ok(until_nul(&buffer))
    }

    /// The names of an agent's instruction sets; none where the library cannot say.
    fn isas(&self, agent: raw::hsa_agent_t) -> Vec<String> {
        let symbols = self.loader.symbols();
        let (Some(iterate), Some(get)) = (symbols.hsa_agent_iterate_isas, symbols.hsa_isa_get_info_alt)
        else {
            return Vec::new();
        };
        let mut handles: Vec<raw::hsa_isa_t> = Vec::new();
        // SAFETY: the callback gets the vector, which outlives the call. CPU agents answer with an error, and no instruction set.
        let _ = unsafe { iterate(agent, Some(push_isa), ptr::from_mut(&mut handles).cast()) };
        let mut names = Vec::new();
        for isa in handles {
            let mut length: u32 = 0;
            // SAFETY: the attribute is a u32.
            let status =
                unsafe { get(isa, raw::HSA_ISA_INFO_NAME_LENGTH, ptr::from_mut(&mut length).cast()) };
            if !Status(status).is_success() || length > ISA_NAME_LIMIT {
                continue;
            }
            let mut name = vec![0_u8; length as usize + 1];
            // SAFETY: the attribute has the length that was just asked for.
            let status = unsafe { get(isa, raw::HSA_ISA_INFO_NAME, name.as_mut_ptr().cast()) };
            if Status(status).is_success() {
                names.push(until_nul(&name));
            }
        }
        names
    }

    fn check(&self, symbol: &'static str, status: raw::hsa_status_t) -> Result<(), VendorError> {
        let status = Status(status);
        if status.is_success() {
            return Ok(());
        }
        Err(VendorError::Call { symbol, status, text: self.status_text(status) })
    }

    fn status_text(&self, status: Status) -> String {
        let mut text = ptr::null();
        // SAFETY: the function writes a pointer to a string of static life, and may be called at any time.
        let known = unsafe { (self.loader.symbols().hsa_status_string)(status.0, &mut text) };
        if !Status(known).is_success() || text.is_null() {
            return "no further explanation".to_owned();
        }
        // SAFETY: the library says that it is a string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A started runtime, shut down again on every way out.
struct Session<'runtime> {
    runtime: &'runtime VendorRuntime,
    ended: bool,
}

impl<'runtime> Session<'runtime> {
    fn start(runtime: &'runtime VendorRuntime) -> Result<Self, VendorError> {
        // SAFETY: no precondition; starts are counted.
        let status = unsafe { (runtime.loader.symbols().hsa_init)() };
        runtime.check("hsa_init", status)?;
        Ok(Self { runtime, ended: false })
    }

    fn end(mut self) -> Result<(), VendorError> {
        self.ended = true;
        // SAFETY: matches the hsa_init of `start`; no handle is used after it.
        let status = unsafe { (self.runtime.loader.symbols().hsa_shut_down)() };
        self.runtime.check("hsa_shut_down", status)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: matches the hsa_init of `start`; no handle outlives the session. There is already an error to report.
            let _ = unsafe { (self.runtime.loader.symbols().hsa_shut_down)() };
        }
    }
}

/// # Safety
/// `vector` is a `Vec<hsa_agent_t>` that nobody else uses.
unsafe extern "C" fn push_agent(agent: raw::hsa_agent_t, vector: *mut c_void) -> raw::hsa_status_t {
    // SAFETY: by contract.
    unsafe { &mut *vector.cast::<Vec<raw::hsa_agent_t>>() }.push(agent);
    raw::HSA_STATUS_SUCCESS
}

/// # Safety
/// `vector` is a `Vec<hsa_isa_t>` that nobody else uses.
unsafe extern "C" fn push_isa(isa: raw::hsa_isa_t, vector: *mut c_void) -> raw::hsa_status_t {
    // SAFETY: by contract.
    unsafe { &mut *vector.cast::<Vec<raw::hsa_isa_t>>() }.push(isa);
    raw::HSA_STATUS_SUCCESS
}

fn until_nul(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim_end().to_owned()
}
