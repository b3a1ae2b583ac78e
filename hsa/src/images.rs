// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images and samplers: none can be made. Agents have limits for them and can do nothing with any format; a program that makes an image
//! or a sampler is refused with the extension's statuses; one that names an image has one of nobody's.
#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_ARGUMENT, Out, Outcome, Status, export};
use crate::agents;
use crate::instance::instance;

const NO_FORMAT: Status = Status(HSA_EXT_STATUS_ERROR_IMAGE_FORMAT_UNSUPPORTED);
const NO_SAMPLER: Status = Status(HSA_EXT_STATUS_ERROR_SAMPLER_DESCRIPTOR_UNSUPPORTED);

/// Says that an agent can do nothing with images of a format.
///
/// # Safety
/// `mask` is null or the program's.
unsafe fn no_capability(
    agent: hsa_agent_t,
    format: *const hsa_ext_image_format_t,
    mask: *mut u32,
) -> Outcome {
    instance()?.agents.gpu(agent)?;
    // SAFETY: by contract.
    let out = unsafe { Out::new(mask) }?;
    if format.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    out.put(0);
    Ok(())
}

/// Refuses what is to be made of a descriptor.
fn refuse<D, M>(agent: hsa_agent_t, descriptor: *const D, made: *mut M, status: Status) -> Outcome {
    instance()?.agents.gpu(agent)?;
    if descriptor.is_null() || made.is_null() { Err(INVALID_ARGUMENT) } else { Err(status) }
}

/// Refuses a handle of an image or a sampler: there are none.
fn nobodys(agent: hsa_agent_t) -> Outcome {
    instance()?.agents.gpu(agent)?;
    Err(INVALID_ARGUMENT)
}

export! {
    /// What an agent can do with images of a format: nothing.
    fn hsa_ext_image_get_capability(
        agent: hsa_agent_t,
        _geometry: hsa_ext_image_geometry_t,
        image_format: *const hsa_ext_image_format_t,
        capability_mask: *mut u32,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { no_capability(agent, image_format, capability_mask) }
    }

    /// What an agent can do with images of a format and layout: nothing.
    fn hsa_ext_image_get_capability_with_layout(
        agent: hsa_agent_t,
        _geometry: hsa_ext_image_geometry_t,
        image_format: *const hsa_ext_image_format_t,
        _image_data_layout: hsa_ext_image_data_layout_t,
        capability_mask: *mut u32,
    ) {
        // SAFETY: the caller's, by the header.
        unsafe { no_capability(agent, image_format, capability_mask) }
    }

    /// The memory that an image needs: refused.
    fn hsa_ext_image_data_get_info(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_t,
        _access_permission: hsa_access_permission_t,
        image_data_info: *mut hsa_ext_image_data_info_t,
    ) {
        refuse(agent, image_descriptor, image_data_info, NO_FORMAT)
    }

    /// The memory that an image of a layout needs: refused.
    fn hsa_ext_image_data_get_info_with_layout(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_t,
        _access_permission: hsa_access_permission_t,
        _image_data_layout: hsa_ext_image_data_layout_t,
        _image_data_row_pitch: usize,
        _image_data_slice_pitch: usize,
        image_data_info: *mut hsa_ext_image_data_info_t,
    ) {
        refuse(agent, image_descriptor, image_data_info, NO_FORMAT)
    }

    /// Makes an image: refused.
    fn hsa_ext_image_create(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_t,
        _image_data: *const c_void,
        _access_permission: hsa_access_permission_t,
        image: *mut hsa_ext_image_t,
    ) {
        refuse(agent, image_descriptor, image, NO_FORMAT)
    }

    /// Makes an image of a layout: refused.
    fn hsa_ext_image_create_with_layout(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_t,
        _image_data: *const c_void,
        _access_permission: hsa_access_permission_t,
        _image_data_layout: hsa_ext_image_data_layout_t,
        _image_data_row_pitch: usize,
        _image_data_slice_pitch: usize,
        image: *mut hsa_ext_image_t,
    ) {
        refuse(agent, image_descriptor, image, NO_FORMAT)
    }

    /// Makes an image of the hardware's layout: refused.
    fn hsa_amd_image_create(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_t,
        _image_layout: *const hsa_amd_image_descriptor_t,
        _image_data: *const c_void,
        _access_permission: hsa_access_permission_t,
        image: *mut hsa_ext_image_t,
    ) {
        refuse(agent, image_descriptor, image, NO_FORMAT)
    }

    /// Destroys an image, of which there is none.
    fn hsa_ext_image_destroy(
        agent: hsa_agent_t,
        _image: hsa_ext_image_t,
    ) {
        nobodys(agent)
    }

    /// Copies between images, of which there are none.
    fn hsa_ext_image_copy(
        agent: hsa_agent_t,
        _src_image: hsa_ext_image_t,
        _src_offset: *const hsa_dim3_t,
        _dst_image: hsa_ext_image_t,
        _dst_offset: *const hsa_dim3_t,
        _range: *const hsa_dim3_t,
    ) {
        nobodys(agent)
    }

    /// Copies into an image, of which there is none.
    fn hsa_ext_image_import(
        agent: hsa_agent_t,
        _src_memory: *const c_void,
        _src_row_pitch: usize,
        _src_slice_pitch: usize,
        _dst_image: hsa_ext_image_t,
        _image_region: *const hsa_ext_image_region_t,
    ) {
        nobodys(agent)
    }

    /// Copies out of an image, of which there is none.
    fn hsa_ext_image_export(
        agent: hsa_agent_t,
        _src_image: hsa_ext_image_t,
        _dst_memory: *mut c_void,
        _dst_row_pitch: usize,
        _dst_slice_pitch: usize,
        _image_region: *const hsa_ext_image_region_t,
    ) {
        nobodys(agent)
    }

    /// Fills an image, of which there is none.
    fn hsa_ext_image_clear(
        agent: hsa_agent_t,
        _image: hsa_ext_image_t,
        _data: *const c_void,
        _image_region: *const hsa_ext_image_region_t,
    ) {
        nobodys(agent)
    }

    /// Destroys a sampler, of which there is none.
    fn hsa_ext_sampler_destroy(
        agent: hsa_agent_t,
        _sampler: hsa_ext_sampler_t,
    ) {
        nobodys(agent)
    }

    /// Makes a sampler: refused.
    fn hsa_ext_sampler_create(
        agent: hsa_agent_t,
        sampler_descriptor: *const hsa_ext_sampler_descriptor_t,
        sampler: *mut hsa_ext_sampler_t,
    ) {
        refuse(agent, sampler_descriptor, sampler, NO_SAMPLER)
    }

    /// The largest image of an agent.
    fn hsa_amd_image_get_info_max_dim(
        agent: hsa_agent_t,
        attribute: hsa_agent_info_t,
        value: *mut c_void,
    ) {
        instance()?.agents.gpu(agent)?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        match attribute {
            HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS..=HSA_EXT_AGENT_INFO_IMAGE_ARRAY_MAX_LAYERS => {
                agents::image_limits(attribute, answer)
            }
            _ => Err(INVALID_ARGUMENT),
        }
    }

    /// Makes an image of the hardware's layout: refused.
    fn hsa_amd_image_create_v2(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_v2_t,
        _image_layout: *const hsa_amd_image_descriptor_t,
        _image_data: *const c_void,
        _access_permission: hsa_access_permission_t,
        image: *mut hsa_ext_image_t,
    ) {
        refuse(agent, image_descriptor, image, NO_FORMAT)
    }

    /// Makes an image: refused.
    fn hsa_ext_image_create_v2(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_v2_t,
        _image_data: *const c_void,
        _access_permission: hsa_access_permission_t,
        image: *mut hsa_ext_image_t,
    ) {
        refuse(agent, image_descriptor, image, NO_FORMAT)
    }

    /// The memory that an image needs: refused.
    fn hsa_ext_image_data_get_info_v2(
        agent: hsa_agent_t,
        image_descriptor: *const hsa_ext_image_descriptor_v2_t,
        _access_permission: hsa_access_permission_t,
        image_data_info: *mut hsa_ext_image_data_info_t,
    ) {
        refuse(agent, image_descriptor, image_data_info, NO_FORMAT)
    }

    /// Destroys an image, of which there is none.
    fn hsa_ext_image_destroy_v2(agent: hsa_agent_t, _image: hsa_ext_image_t) {
        nobodys(agent)
    }

    /// An image of one of several sizes, of which there are none.
    fn hsa_ext_image_mipmap_array_get_level(
        agent: hsa_agent_t,
        _mipmapped_array: *const hsa_ext_image_t,
        _mip_level: u32,
        _image_descriptor: *const hsa_ext_image_descriptor_v2_t,
        _level_image_out: *mut hsa_ext_image_t,
    ) {
        nobodys(agent)
    }

    /// Makes a sampler: refused.
    fn hsa_ext_sampler_create_v2(
        agent: hsa_agent_t,
        sampler_descriptor: *const hsa_ext_sampler_descriptor_v2_t,
        sampler: *mut hsa_ext_sampler_t,
    ) {
        refuse(agent, sampler_descriptor, sampler, NO_SAMPLER)
    }
}
