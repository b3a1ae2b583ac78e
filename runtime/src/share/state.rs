// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process, and its image, remember of shared memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::barrier::SessionOrder;
use super::table::Object;
use crate::context::registry::state::DmabufId;

/// What a process, and its image, remember of shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedState {
    /// The session it was checkpointed in, if others were in it.
    pub order: Option<SessionOrder>,
    /// All memory of the session, this process's or not.
    #[serde(with = "values")]
    pub objects: BTreeMap<DmabufId, Object>,
}

/// The map as a list: keys of JSON maps are strings.
mod values {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::{DmabufId, Object};

    pub fn serialize<S: Serializer>(map: &BTreeMap<DmabufId, Object>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map.values())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<DmabufId, Object>, D::Error> {
        let objects = Vec::<Object>::deserialize(from)?;
        Ok(objects.into_iter().map(|object| (object.dmabuf, object)).collect())
    }
}
