// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the catalogue's kernels as the host compiled them: the reference.
//!
//! INVARIANT: the library is the one that this crate's build made of the same sources as the GPU's code, so a kernel's
//! argument block has one layout.
#![allow(unsafe_code)]

use libloading::{Library, Symbol};

use crate::problem::{Argument, Problem};
use crate::{Engine, WaveSize};

/// `host_NAME` of `dual_host.h`: argument block, work-items of the grid, work-items of a workgroup.
type Entry = unsafe extern "C" fn(*const u8, *const u32, *const u32);

/// A kernel that could not be run on the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The library or the kernel in it is missing.
    #[error("Host library has no {name}: build softgpu-kernels again")]
    Library {
        /// File or symbol.
        name: &'static str,
        /// What the dynamic linker said.
        #[source]
        source: libloading::Error,
    },
    /// The host runs whole workgroups only.
    #[error("Grid {grid:?} is not a multiple of the workgroup {workgroup:?}: choose one that is")]
    PartialGroup {
        /// Work-items of the grid.
        grid: [u32; 3],
        /// Work-items of a workgroup.
        workgroup: [u16; 3],
    },
}

/// The host's build of the kernels for one wave size.
#[derive(Debug)]
pub struct Host {
    library: Library,
}

impl Host {
    /// Loads the library.
    ///
    /// # Errors
    /// [`HostError::Library`] if the build's output is gone.
    pub fn new(size: WaveSize) -> Result<Host, HostError> {
        let name = match size {
            WaveSize::W32 => concat!(env!("OUT_DIR"), "/host-32.so"),
            WaveSize::W64 => concat!(env!("OUT_DIR"), "/host-64.so"),
        };
        // SAFETY: our own library; its initialisers do nothing.
        let library = unsafe { Library::new(name) }.map_err(|source| HostError::Library { name, source })?;
        Ok(Host { library })
    }
}

impl Engine for Host {
    type Error = HostError;

    fn run(&self, problem: &Problem) -> Result<Vec<Vec<u8>>, HostError> {
        let workgroup = problem.workgroup.map(u32::from);
        if problem.grid.iter().zip(workgroup).any(|(&grid, size)| size == 0 || grid % size != 0) {
            return Err(HostError::PartialGroup { grid: problem.grid, workgroup: problem.workgroup });
        }
        let name = problem.kernel;
        // SAFETY: every `host_` symbol of the library is such a function.
        let entry: Symbol<Entry> = unsafe { self.library.get(format!("host_{name}").as_bytes()) }
            .map_err(|source| HostError::Library { name, source })?;
        let mut buffers: Vec<(Vec<Line>, usize)> = problem
            .arguments
            .iter()
            .filter_map(|argument| match argument {
                Argument::Buffer(buffer) => Some((lines(&buffer.bytes), buffer.bytes.len())),
                Argument::U32(_) => None,
            })
            .collect();
        let addresses = buffers.iter_mut().map(|(memory, _)| memory.as_mut_ptr().expose_provenance() as u64);
        let block = lines(&problem.argument_block(addresses));
        // SAFETY: the block holds what the kernel's argument structure does, in its layout, and its pointers are of
        // buffers that live until the call returns; what a kernel touches of them is the catalogue's to keep in bounds.
        unsafe { entry(block.as_ptr().cast(), problem.grid.as_ptr(), workgroup.as_ptr()) };
        Ok(buffers.iter().map(|(memory, len)| bytes(memory, *len)).collect())
    }
}

/// Host memory as large and as aligned as the widest vector of a kernel.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

fn lines(bytes: &[u8]) -> Vec<Line> {
    let line = |chunk: &[u8]| {
        let mut line = Line([0; 64]);
        line.0[..chunk.len()].copy_from_slice(chunk);
        line
    };
    bytes.chunks(64).map(line).collect()
}

fn bytes(lines: &[Line], len: usize) -> Vec<u8> {
    lines.iter().flat_map(|line| line.0).take(len).collect()
}
