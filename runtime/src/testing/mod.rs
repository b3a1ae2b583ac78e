// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software device in the test's own process, behind a transport that counts calls, notes some and refuses some.
//!
//! What a test says of the device is true of the real driver and of real queues: the only things that are pretended are
//! the topology's text, where a test changes it, and the version of the interface.
#![allow(unsafe_code)]

pub(crate) mod alloc;
mod driver;
pub(crate) mod faulty;
mod topology;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use kfd::topology::SysfsSource;
use kfd::transport::CloseError;
use kfd::transport::soft::SoftTransport;
use kfd::{File, OpenError, Transport};
use softgpu::driver::KernelModel;

pub(crate) use self::driver::TestDriver;
pub(crate) use self::topology::TestSysfs;
use crate::runtime::Runtime;

/// The transport to a software device of the test's own.
#[derive(Debug)]
pub(crate) struct TestTransport {
    pub kernel: Arc<TestDriver>,
    pub sysfs: TestSysfs,
    soft: SoftTransport,
}

impl TestTransport {
    /// To a machine with `gpus` gfx1100 GPUs.
    pub fn new(gpus: u32) -> Arc<Self> {
        Self::under(KernelModel::default(), gpus)
    }

    /// The same with the driver of this kernel.
    pub fn under(kernel: KernelModel, gpus: u32) -> Arc<Self> {
        let kernel = TestDriver::new(&topology::machine(gpus), kernel);
        let soft = kernel.device.transport();
        Arc::new(TestTransport { kernel, sysfs: TestSysfs::new(gpus), soft })
    }

    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(driver::TestFile::new(file, Arc::clone(&self.kernel)))
    }
}

/// A runtime of its own on a device with `gpus` gfx1100 GPUs.
pub(crate) fn runtime(gpus: u32) -> (Runtime, Arc<TestDriver>) {
    runtime_on(TestTransport::new(gpus))
}

/// A runtime of its own on this device.
pub(crate) fn runtime_on(transport: Arc<TestTransport>) -> (Runtime, Arc<TestDriver>) {
    let kernel = Arc::clone(&transport.kernel);
    let context = crate::context::open::open(transport, None).unwrap();
    (Runtime::from_context(&context), kernel)
}

impl Transport for TestTransport {
    fn name(&self) -> &str {
        self.soft.name()
    }

    fn sysfs(&self) -> &dyn SysfsSource {
        &self.sysfs
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>, OpenError> {
        self.soft.open(path).map(|file| self.file(file))
    }

    fn adopt(&self, path: &Path, fd: OwnedFd) -> Result<Arc<dyn File>, OpenError> {
        self.soft.adopt(path, fd).map(|file| self.file(file))
    }

    fn close(&self) -> Result<(), CloseError> {
        self.soft.close()
    }
}
