// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers: device memory with the shape and type of elements that numpy gives arrays.
//!
//! INVARIANT: `shape` and `dtype` describe exactly the bytes of the memory, which has one address for its whole life.

pub mod view;

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple};
use stasis::share::{NAME_BYTES, SharedName};
use stasis::{Agent, NamedError, Pool, Transfer, explain};

use self::view::View;
use crate::device::{Device, runtime};
use crate::dlpack;
use crate::error::{self, Timeout};
use crate::memory::Memory;
use crate::process;
use crate::wait;

/// numpy, imported when it is first used.
fn numpy(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    NUMPY.get_or_try_init(py, || py.import("numpy").map(Bound::unbind)).map(|numpy| numpy.bind(py))
}

fn pool(agent: &Agent, name: &str) -> PyResult<Pool> {
    match name {
        "vram" => Ok(agent.vram()),
        "host" => Ok(agent.host()),
        _ => Err(PyValueError::new_err(format!("Memory {name:?} is unknown: give \"vram\" or \"host\""))),
    }
}

/// Waits for a copy or a fill.
fn finish(py: Python<'_>, transfer: &Transfer) -> PyResult<()> {
    wait::interruptible(py, None, |time| transfer.signal().wait_done(time))?;
    // What failed otherwise than by its queue.
    py.detach(|| transfer.wait(None)).map_err(|found| error::copy(&found))
}

/// The elements of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Elements {
    /// Lengths of the dimensions; the last one's elements lie beside each other.
    pub shape: Vec<usize>,
    /// Their type in numpy's notation, such as `<f4`.
    pub typestr: String,
    /// Bytes of one.
    pub bytes: usize,
}

impl Elements {
    /// Of a numpy dtype, or what numpy makes one of; and that dtype if the notation says too little of it.
    fn new(
        py: Python<'_>,
        shape: Vec<usize>,
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<(Self, Option<Py<PyAny>>)> {
        let dtype = numpy(py)?.call_method1("dtype", (dtype,))?;
        if dtype.getattr("hasobject")?.extract()? {
            return Err(PyTypeError::new_err(
                "Python objects cannot be in a buffer: give an array of numbers",
            ));
        }
        let (typestr, bytes) = (dtype.getattr("str")?, dtype.getattr("itemsize")?.extract()?);
        let is_said = numpy(py)?.call_method1("dtype", (&typestr,))?.eq(&dtype)?;
        Ok((Self { shape, typestr: typestr.extract()?, bytes }, (!is_said).then(|| dtype.unbind())))
    }

    /// Bytes without a type.
    fn untyped(bytes: u64) -> PyResult<Self> {
        let bytes = usize::try_from(bytes)?;
        Ok(Self { shape: vec![bytes], typestr: "|u1".to_owned(), bytes: 1 })
    }

    /// In words that [`Elements::of_layout`] understands: `<f4 64,128`.
    fn layout(&self) -> String {
        let lengths: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!("{} {}", self.typestr, lengths.join(","))
    }

    /// Of `bytes` bytes that whoever labelled them has described, or bytes without a type.
    ///
    /// # Errors
    /// What numpy says of the type.
    fn of_layout(py: Python<'_>, layout: &str, bytes: u64) -> PyResult<Self> {
        let Some((typestr, lengths)) = layout.split_once(' ') else { return Self::untyped(bytes) };
        let lengths = lengths.split(',').filter(|length| !length.is_empty()).map(str::parse::<usize>);
        let Ok(shape) = lengths.collect::<Result<Vec<_>, _>>() else { return Self::untyped(bytes) };
        let dtype = numpy(py)?.call_method1("dtype", (typestr,))?;
        let elements = Self::new(py, shape, &dtype)?.0;
        // Views must not reach beyond the memory.
        if elements.total()? == bytes { Ok(elements) } else { Self::untyped(bytes) }
    }

    fn total(&self) -> PyResult<u64> {
        let all = self.shape.iter().try_fold(self.bytes, |bytes, length| bytes.checked_mul(*length));
        let too_many = || {
            PyValueError::new_err(format!("Shape {:?} has more bytes than there are addresses", self.shape))
        };
        all.map(|bytes| bytes as u64).ok_or_else(too_many)
    }
}

/// A buffer's name as Python has it: 20 bytes of the runtime's, then in words the kind of memory, its length and its layout.
struct Named<'n> {
    name: SharedName,
    is_of_device: bool,
    bytes: u64,
    layout: &'n str,
}

impl<'n> Named<'n> {
    fn of(name: &'n [u8]) -> Option<Self> {
        let (bytes, said) = name.split_first_chunk::<NAME_BYTES>()?;
        let mut words = str::from_utf8(said).ok()?.splitn(3, ' ');
        let (memory, length, layout) = (words.next()?, words.next()?, words.next()?);
        Some(Self {
            name: SharedName::from_bytes(*bytes),
            is_of_device: memory == "vram",
            bytes: length.parse().ok()?,
            layout,
        })
    }
}

/// One length, or several.
fn shape(given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    given.extract::<usize>().map(|length| vec![length]).or_else(|_| given.extract())
}

/// Device memory.
#[pyclass(frozen, module = "stasis", weakref)]
#[derive(Debug)]
pub struct Buffer {
    memory: Arc<Memory>,
    elements: Elements,
    /// The type of its elements, where numpy's notation says too little: of structures, and of types of other packages.
    dtype: Option<Py<PyAny>>,
    device: Py<Device>,
}

impl Buffer {
    fn allocate(
        py: Python<'_>,
        device: Py<Device>,
        elements: (Elements, Option<Py<PyAny>>),
        memory: &str,
    ) -> PyResult<Self> {
        Self::allocate_as(py, device, elements, memory, false)
    }

    /// As [`Buffer::allocate`]; waves may execute what is written there if `is_code`.
    fn allocate_as(
        py: Python<'_>,
        device: Py<Device>,
        (elements, dtype): (Elements, Option<Py<PyAny>>),
        memory: &str,
        is_code: bool,
    ) -> PyResult<Self> {
        process::check()?;
        let pool = pool(device.get().agent(), memory)?;
        let memory = Memory::allocate(py, &pool, elements.total()?, is_code)?;
        Ok(Self { memory: Arc::new(memory), elements, dtype, device })
    }

    /// Memory of another kind for what it has.
    fn like(&self, py: Python<'_>, device: Py<Device>, memory: &str) -> PyResult<Self> {
        let dtype = self.dtype.as_ref().map(|dtype| dtype.clone_ref(py));
        Self::allocate(py, device, (self.elements.clone(), dtype), memory)
    }

    /// Memory of another kind with what it has, when the launches that were given it have completed.
    fn copied(&self, py: Python<'_>, device: Py<Device>, memory: &str) -> PyResult<Self> {
        let copy = self.like(py, device, memory)?;
        self.memory.settle(py)?;
        copy.copy_from(py, self)?;
        Ok(copy)
    }

    /// One that was adopted, on the device that has it or, if it is the host's, on the first.
    pub fn adopted(py: Python<'_>, adopted: stasis::Adopted, device: Py<Device>) -> PyResult<Self> {
        let elements = Elements::of_layout(py, &adopted.layout, adopted.buffer.len())?;
        let memory = Memory::of(adopted.buffer, adopted.agent.is_some());
        Ok(Self { memory: Arc::new(memory), elements, dtype: None, device })
    }

    /// Its memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Its elements.
    pub fn elements(&self) -> &Elements {
        &self.elements
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        self.device.get()
    }

    /// A numpy array over its memory, which the CPU sees.
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let view = View::new(py, &self.memory, self.elements.clone())?;
        if self.memory.is_of_device {
            self.device().note_view();
        }
        let array = numpy(py)?.call_method1("asarray", (view,))?;
        match &self.dtype {
            Some(dtype) => array.call_method1("view", (dtype,)),
            None => Ok(array),
        }
    }

    /// Memory of the host for what it has, which the CPU does not see.
    fn stage(&self, py: Python<'_>) -> PyResult<Self> {
        self.like(py, self.device.clone_ref(py), "host")
    }

    fn copy_from(&self, py: Python<'_>, other: &Self) -> PyResult<()> {
        let bytes = self.memory.buffer.len();
        if other.memory.buffer.len() != bytes {
            return Err(PyValueError::new_err(format!(
                "A buffer of {} bytes cannot be copied to one of {bytes}",
                other.memory.buffer.len()
            )));
        }
        let (to, from) = (self.memory.buffer.span(0, bytes), other.memory.buffer.span(0, bytes));
        let runtime = runtime(py)?;
        let copied = py.detach(|| runtime.copy(to, from, &[])).map_err(|found| error::copy(&found))?;
        finish(py, &copied)
    }
}

#[pymethods]
impl Buffer {
    #[new]
    #[pyo3(signature = (device, nbytes, *, memory="vram", executable=false))]
    fn new(
        py: Python<'_>,
        device: Py<Device>,
        nbytes: u64,
        memory: &str,
        executable: bool,
    ) -> PyResult<Self> {
        Self::allocate_as(py, device, (Elements::untyped(nbytes)?, None), memory, executable)
    }

    /// A buffer with the shape, type and contents of an array.
    #[staticmethod]
    #[pyo3(signature = (device, array, *, memory="vram"))]
    fn from_numpy(
        py: Python<'_>,
        device: Py<Device>,
        array: &Bound<'_, PyAny>,
        memory: &str,
    ) -> PyResult<Self> {
        let array = numpy(py)?.call_method1("asarray", (array,))?;
        let elements = Elements::new(py, array.getattr("shape")?.extract()?, &array.getattr("dtype")?)?;
        let buffer = Self::allocate(py, device, elements, memory)?;
        buffer.write(py, &array)?;
        Ok(buffer)
    }

    /// A buffer of this shape, with what its memory has.
    #[staticmethod]
    #[pyo3(signature = (device, shape, dtype=None, *, memory="vram"))]
    fn empty(
        py: Python<'_>,
        device: Py<Device>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        memory: &str,
    ) -> PyResult<Self> {
        let shape = self::shape(shape)?;
        let elements = match dtype {
            Some(dtype) => Elements::new(py, shape, dtype)?,
            None => (Elements { shape, typestr: "<f4".to_owned(), bytes: 4 }, None),
        };
        Self::allocate(py, device, elements, memory)
    }

    /// A buffer of this shape, all zeros.
    #[staticmethod]
    #[pyo3(signature = (device, shape, dtype=None, *, memory="vram"))]
    fn zeros(
        py: Python<'_>,
        device: Py<Device>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        memory: &str,
    ) -> PyResult<Self> {
        let buffer = Self::empty(py, device, shape, dtype, memory)?;
        buffer.fill(py, 0)?;
        Ok(buffer)
    }

    /// A buffer with the contents of a tensor of another library, whose memory the CPU sees.
    #[staticmethod]
    #[pyo3(signature = (device, tensor, *, memory="vram"))]
    fn from_dlpack(
        py: Python<'_>,
        device: Py<Device>,
        tensor: &Bound<'_, PyAny>,
        memory: &str,
    ) -> PyResult<Self> {
        if let Ok(buffer) = tensor.cast::<Self>() {
            return buffer.get().copied(py, device, memory);
        }
        let array = numpy(py)?.call_method1("from_dlpack", (tensor,))?;
        Self::from_numpy(py, device, &array, memory)
    }

    /// Its contents, when the launches that were given it have completed: a view where the CPU sees the memory, a copy otherwise.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.memory.settle(py)?;
        if self.memory.buffer.is_visible() {
            return self.array(py);
        }
        let stage = self.stage(py)?;
        stage.copy_from(py, self)?;
        stage.array(py)
    }

    /// What it is called, by which another process can adopt it.
    #[getter]
    fn label(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let label = py.detach(|| self.memory.buffer.label()).map_err(|found| error::alloc(&found))?;
        Ok(label.map(|(label, _)| label))
    }

    /// Gives it a label, which `stasis.save` keeps with it.
    fn set_label(slf: &Bound<'_, Self>, label: &str) -> PyResult<Py<Self>> {
        let this = slf.get();
        if this.dtype.is_some() {
            return Err(PyTypeError::new_err(
                "A buffer of structures, or of another package's type, cannot be labelled: take one of bytes",
            ));
        }
        let layout = this.elements.layout();
        let labelled = slf.py().detach(|| this.memory.buffer.set_label(label, &layout));
        labelled.map_err(|found| PyValueError::new_err(explain(&found)))?;
        Ok(slf.clone().unbind())
    }

    /// What other processes of the user can ask for its memory by: the runtime's name, then what it is ([`Named`]).
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        process::check()?;
        let name = py.detach(|| self.memory.buffer.name()).map_err(|found| error::plain(&found))?;
        let layout = if self.dtype.is_some() { String::new() } else { self.elements.layout() };
        let said = format!("{} {} {layout}", self.py_memory(), self.nbytes());
        Ok(PyBytes::new(py, &[&name.to_bytes()[..], said.as_bytes()].concat()))
    }

    /// The memory that a name of another process's names, which a device's kernels may use.
    #[staticmethod]
    #[pyo3(signature = (device, name, *, timeout=10.0))]
    fn named(py: Python<'_>, device: Py<Device>, name: &[u8], timeout: f64) -> PyResult<Self> {
        let limit = wait::seconds(timeout)?;
        let no_name = || {
            let bytes = name.len();
            PyValueError::new_err(format!(
                "{bytes} bytes are no name of a buffer: give what Buffer.name() gave"
            ))
        };
        let named = Named::of(name).ok_or_else(no_name)?;
        let runtime = runtime(py)?;
        let imported = py.detach(|| runtime.import_named(&named.name, device.get().agent(), limit));
        let imported = imported.map_err(|found| match found {
            found if found.is_name() => PyValueError::new_err(explain(&found)),
            found @ NamedError::Away { .. } => Timeout::new_err(explain(&found)),
            found => error::plain(&found),
        })?;
        let imported = imported.first(named.bytes);
        let elements = Elements::of_layout(py, named.layout, imported.len()).map_err(|_| no_name())?;
        // The kind in a name is the other process's claim: memory that the CPU does not see is a device's.
        let is_of_device = named.is_of_device || !imported.is_visible();
        let memory = Memory::of(imported, is_of_device);
        Ok(Self { memory: Arc::new(memory), elements, dtype: None, device })
    }

    /// Copies an array of its shape into it, or one that numpy makes it of, when everything that was submitted has
    /// completed.
    fn write(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        self.memory.settle(py)?;
        if self.memory.buffer.is_visible() {
            numpy(py)?.call_method1("copyto", (self.array(py)?, array))?;
            // Another process that has it may look at it at once.
            return self.memory.address(py).map(drop);
        }
        let stage = self.stage(py)?;
        stage.write(py, array)?;
        self.copy_from(py, &stage)
    }

    /// Has each of its bytes be `value`, when the launches that were given it have completed.
    fn fill(&self, py: Python<'_>, value: u8) -> PyResult<()> {
        self.memory.settle(py)?;
        let (buffer, runtime) = (&self.memory.buffer, runtime(py)?);
        let filled = py.detach(|| runtime.fill(buffer.span(0, buffer.len()), &[value], &[]));
        finish(py, &filled.map_err(|found| error::copy(&found))?)
    }

    /// Lets kernels of another device use it.
    fn allow(&self, py: Python<'_>, device: &Device) -> PyResult<()> {
        process::check()?;
        py.detach(|| self.memory.buffer.allow(device.agent())).map_err(|found| error::alloc(&found))
    }

    /// As torch's tensors have it: each of its bytes is 0 afterwards.
    #[pyo3(name = "zero_")]
    fn zero(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        slf.get().fill(slf.py(), 0)?;
        Ok(slf.clone().unbind())
    }

    /// As torch's tensors have it: the contents of another buffer of as many bytes.
    #[pyo3(name = "copy_")]
    fn copy(slf: &Bound<'_, Self>, source: &Self) -> PyResult<Py<Self>> {
        let (py, buffer) = (slf.py(), slf.get());
        buffer.memory.settle(py)?;
        source.memory.settle(py)?;
        buffer.copy_from(py, source)?;
        Ok(slf.clone().unbind())
    }

    /// As torch's tensors have it: another buffer with its contents, in memory of the same kind.
    #[pyo3(name = "clone")]
    fn duplicate(&self, py: Python<'_>) -> PyResult<Self> {
        self.copied(py, self.device.clone_ref(py), self.py_memory())
    }

    /// Its address, the same for the CPU and the device for its whole life, over restores too.
    fn data_ptr(&self) -> u64 {
        self.memory.buffer.va()
    }

    /// Gives its memory back, once launches that were given it have completed; otherwise that happens when nothing names it
    /// any more.
    #[pyo3(signature = (timeout=None))]
    fn free(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        process::check()?;
        self.memory.free(py, wait::timeout(timeout)?)
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.memory.buffer.len()
    }

    #[getter]
    #[pyo3(name = "shape")]
    fn py_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.elements.shape)
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.dtype {
            Some(dtype) => Ok(dtype.bind(py).clone()),
            None => numpy(py)?.call_method1("dtype", (&self.elements.typestr,)),
        }
    }

    #[getter]
    #[pyo3(name = "memory")]
    fn py_memory(&self) -> &'static str {
        if self.memory.is_of_device { "vram" } else { "host" }
    }

    #[getter]
    #[pyo3(name = "device")]
    fn py_device(&self, py: Python<'_>) -> Py<Device> {
        self.device.clone_ref(py)
    }

    #[getter]
    fn is_host_visible(&self) -> bool {
        self.memory.buffer.is_visible()
    }

    fn __dlpack_device__(&self) -> (i32, usize) {
        dlpack::device(self)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, usize)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (stream, max_version);
        self.memory.settle(py)?;
        dlpack::export(py, self, dl_device, copy)
    }

    fn __len__(&self) -> usize {
        self.elements.shape.first().copied().unwrap_or(1)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        match self.memory.buffer.is_alive() {
            true => self.free(py, None),
            false => Ok(()),
        }
    }

    fn __repr__(&self) -> String {
        let Elements { shape, typestr, .. } = &self.elements;
        let state = if self.memory.buffer.is_alive() { "" } else { ", freed" };
        format!("<stasis.Buffer {shape:?} {typestr} at {:#x}{state}>", self.data_ptr())
    }
}
