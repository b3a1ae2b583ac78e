// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work of the CPU's, away from the threads that serve sockets.

use super::ApiError;

/// Does `work` on the runtime's blocking threads if it is `large`, else here: the way there and back costs more than
/// a short text does.
pub(super) async fn aside<T: Send + 'static>(
    large: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    if !large {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(target: "http", %error, "work aside was lost");
        ApiError::internal()
    })
}
