// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules and kernels: code objects on a device, and launches of what is in them.

use std::path::PathBuf;

use pyo3::exceptions::{PyKeyError, PyOSError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use stasis::{Arg, Executable};

use crate::arguments::Value;
use crate::device::Device;
use crate::error::{self, LaunchError, LoadError};
use crate::process::{self, Held};
use crate::queue::Queue;
use crate::wait;

/// A code object on a device.
#[pyclass(frozen, module = "stasis")]
#[derive(Debug)]
pub struct Module {
    executable: Held<Executable>,
    device: Py<Device>,
}

/// The bytes of a file, or those that were given.
fn code(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(path) = given.extract::<PathBuf>() {
        let read = py.detach(|| std::fs::read(&path));
        return read.map_err(|found| PyOSError::new_err(format!("Cannot read {}: {found}", path.display())));
    }
    given.extract()
}

#[pymethods]
impl Module {
    #[new]
    fn new(py: Python<'_>, device: Py<Device>, code: &Bound<'_, PyAny>) -> PyResult<Self> {
        process::check()?;
        let code = self::code(py, code)?;
        let agent = device.get().agent();
        let loaded = py.detach(|| Executable::load(agent, &code));
        let executable = loaded.map_err(|found| error::load(&found))?;
        Ok(Self { executable: Held::new(executable), device })
    }

    /// The kernel of this name.
    fn kernel(slf: &Bound<'_, Self>, name: &str) -> PyResult<Kernel> {
        process::check()?;
        let found = slf.get().executable.kernel(name);
        let kernel = found.map_err(|found| error::load(&found))?;
        Ok(Kernel { kernel: Held::new(kernel), device: slf.get().device.clone_ref(slf.py()) })
    }

    fn __getitem__(slf: &Bound<'_, Self>, name: &str) -> PyResult<Kernel> {
        Self::kernel(slf, name).map_err(|found| match found.is_instance_of::<LoadError>(slf.py()) {
            true => PyKeyError::new_err(found.value(slf.py()).to_string()),
            false => found,
        })
    }

    /// The names of its kernels.
    #[getter]
    fn kernels(&self) -> Vec<String> {
        self.executable.object().kernels().iter().map(|kernel| kernel.name.clone()).collect()
    }

    /// The address of an exported variable.
    fn global_ptr(&self, name: &str) -> PyResult<u64> {
        let known = || PyKeyError::new_err(format!("The module exports no variable {name}"));
        self.executable.global(name).ok_or_else(known)
    }

    #[getter]
    #[pyo3(name = "device")]
    fn py_device(&self, py: Python<'_>) -> Py<Device> {
        self.device.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        format!("<stasis.Module at {:#x}: {}>", self.executable.base(), self.kernels().join(", "))
    }
}

/// A kernel of a module.
#[pyclass(frozen, module = "stasis")]
#[derive(Debug)]
pub struct Kernel {
    kernel: Held<stasis::Kernel>,
    device: Py<Device>,
}

impl Kernel {
    /// How many arguments it takes.
    pub fn parameters(&self) -> usize {
        self.kernel.arguments().explicit().len()
    }
}

#[pymethods]
impl Kernel {
    #[getter]
    fn name(&self) -> &str {
        self.kernel.name()
    }

    /// Of each explicit argument its name, its kind and its bytes.
    #[getter]
    fn arguments(&self) -> Vec<(Option<String>, String, usize)> {
        let explicit = self.kernel.arguments().explicit().iter();
        explicit.map(|found| (found.name.clone(), found.kind.name().to_owned(), found.bytes)).collect()
    }

    /// Vector registers of a wave.
    #[getter]
    fn registers(&self) -> u32 {
        self.kernel.metadata().vgprs
    }

    /// Bytes of LDS that it has compiled in.
    #[getter]
    fn lds_bytes(&self) -> u32 {
        self.kernel.metadata().group_bytes
    }

    /// Bytes of scratch of a work-item.
    #[getter]
    fn scratch_bytes(&self) -> u32 {
        self.kernel.metadata().private_bytes
    }

    /// Work-items of a wave.
    #[getter]
    fn wave_size(&self) -> u32 {
        self.kernel.metadata().wavefront_size
    }

    /// Most work-items of a work-group.
    #[getter]
    fn max_block(&self) -> u32 {
        self.kernel.metadata().max_flat_workgroup_size
    }

    fn __getitem__(slf: Py<Self>, shape: &Bound<'_, PyAny>) -> PyResult<Launch> {
        let wanted = || {
            LaunchError::new_err("A launch is kernel[grid, block](...) or kernel[grid, block, queue](...)")
        };
        let shape = shape.cast::<PyTuple>().map_err(|_| wanted())?;
        if !matches!(shape.len(), 2 | 3) {
            return Err(wanted());
        }
        let queue = match shape.len() {
            3 => shape.get_item(2)?.extract::<Option<Py<Queue>>>().map_err(|_| wanted())?,
            _ => None,
        };
        let (grid, block) = (axes(&shape.get_item(0)?, "grid")?, axes(&shape.get_item(1)?, "block")?);
        Ok(Launch { kernel: slf, grid, block, queue })
    }

    /// Launches it: `grid` work-groups of `block` work-items with these arguments.
    #[pyo3(signature = (grid, block, args, *, queue=None, dynamic_lds=0))]
    fn launch(
        slf: &Bound<'_, Self>,
        grid: &Bound<'_, PyAny>,
        block: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        queue: Option<Py<Queue>>,
        dynamic_lds: u32,
    ) -> PyResult<()> {
        let shape = (axes(grid, "grid")?, axes(block, "block")?);
        submit(slf, queue.as_ref(), shape, &values(slf.get(), args)?, dynamic_lds)
    }

    fn __repr__(&self) -> String {
        format!(
            "<stasis.Kernel {} of {} arguments>",
            self.kernel.name(),
            self.kernel.arguments().explicit().len()
        )
    }
}

/// A kernel with the shape of its launch; called with arguments it is launched.
#[pyclass(frozen, module = "stasis")]
#[derive(Debug)]
pub struct Launch {
    kernel: Py<Kernel>,
    grid: [u32; 3],
    block: [u32; 3],
    queue: Option<Py<Queue>>,
}

#[pymethods]
impl Launch {
    #[pyo3(signature = (*args))]
    fn __call__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>) -> PyResult<()> {
        let values = values(self.kernel.get(), args)?;
        submit(self.kernel.bind(py), self.queue.as_ref(), (self.grid, self.block), &values, 0)
    }
}

/// One, two or three lengths.
fn axes(given: &Bound<'_, PyAny>, what: &str) -> PyResult<[u32; 3]> {
    let lengths = match given.extract::<u32>() {
        Ok(length) => vec![length],
        Err(_) => given.extract::<Vec<u32>>().unwrap_or_default(),
    };
    match *lengths {
        [x] => Ok([x, 1, 1]),
        [x, y] => Ok([x, y, 1]),
        [x, y, z] => Ok([x, y, z]),
        _ => Err(LaunchError::new_err(format!(
            "The {what} is one whole number from 1 on, or two or three of them, found {}",
            given.repr()?
        ))),
    }
}

/// The arguments that were given to a kernel.
fn values(kernel: &Kernel, args: &Bound<'_, PyTuple>) -> PyResult<Vec<Value>> {
    let parameters = kernel.kernel.arguments().explicit();
    if parameters.len() != args.len() {
        return Err(LaunchError::new_err(format!(
            "Kernel {} takes {} arguments, {} were given",
            kernel.kernel.name(),
            parameters.len(),
            args.len()
        )));
    }
    let given = args.iter().zip(parameters.iter().enumerate());
    given.map(|(given, parameter)| Value::of(&given, parameter)).collect()
}

/// The work-items of `groups` work-groups of `block` work-items: of the grid, and of a work-group.
fn items(name: &str, (groups, block): ([u32; 3], [u32; 3])) -> PyResult<([u32; 3], [u16; 3])> {
    let (mut grid, mut group) = ([0u32; 3], [0u16; 3]);
    for axis in 0..3 {
        let refused = || {
            LaunchError::new_err(format!(
                "Kernel {name}: {groups:?} work-groups of {block:?} work-items are no launch: a work-group has at most \
                 65535 work-items in a dimension, a grid fewer than 2**32"
            ))
        };
        grid[axis] = groups[axis].checked_mul(block[axis]).ok_or_else(refused)?;
        group[axis] = u16::try_from(block[axis]).map_err(|_| refused())?;
    }
    Ok((grid, group))
}

/// Submits a launch. Waits while the queue is full, so that Ctrl-C ends the wait.
///
/// # Errors
/// `LaunchError` if it is none, `KernelFault` if the queue has stopped, `Error`.
pub fn submit(
    kernel: &Bound<'_, Kernel>,
    queue: Option<&Py<Queue>>,
    shape: ([u32; 3], [u32; 3]),
    values: &[Value],
    dynamic_lds: u32,
) -> PyResult<()> {
    process::check()?;
    let py = kernel.py();
    let (grid, group) = items(kernel.get().kernel.name(), shape)?;
    let queue = match queue {
        Some(queue) => queue.clone_ref(py),
        None => Device::default_queue(kernel.get().device.bind(py))?,
    };
    let arguments: Vec<Arg<'_>> = values.iter().map(Value::arg).collect();
    let device = queue.get().device();
    for value in values {
        if let Value::Buffer(memory) = value {
            memory.note_use(device.agent().index());
        }
    }
    device.flush_views()?;
    let dispatch = queue.get().queue().dispatch(&kernel.get().kernel);
    let dispatch = dispatch.grid(grid).block(group).dynamic_lds(dynamic_lds).args(&arguments);
    loop {
        // Without the interpreter's lock: a thread that needs it may have to run before the queue has room, or the process is
        // unlocked.
        match py.detach(|| dispatch.clone().submit_timeout(wait::SLICE)) {
            Ok(_) => return Ok(()),
            Err(stasis::SubmitError::Timeout { .. }) => py.check_signals()?,
            Err(found) => return Err(error::submit(&found)),
        }
    }
}
