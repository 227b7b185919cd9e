//! A UCX context with its one worker.

use std::ptr::{null, null_mut};
use std::sync::Arc;

use crate::ucx::api::{self, Api, Params, UcpRequest, WorkerParams, status_of};

/// Used by one thread at a time; destroyed when it is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) api: Arc<Api>,
    pub(super) context: api::UcpContext,
    pub(super) handle: api::UcpWorker,
}

impl Worker {
    pub(super) fn new(api: Arc<Api>, features: u64) -> Result<Self, String> {
        let (major, minor) = Api::version();
        let params = Params::features(features);
        let mut made = Self { api, context: null_mut(), handle: null_mut() };
        // SAFETY: the parameters have the features only; the configuration is the default.
        let status = unsafe {
            (made.api.ucp_init_version)(major, minor, &raw const params, null(), &raw mut made.context)
        };
        made.api.check("ucp_init", status)?;
        let params = WorkerParams::serialized();
        // SAFETY: the context was just made.
        let status =
            unsafe { (made.api.ucp_worker_create)(made.context, &raw const params, &raw mut made.handle) };
        made.api.check("ucp_worker_create", status)?;
        Ok(made)
    }

    /// Lets the worker do what is due; whether that was something.
    pub(super) fn progress(&self) -> bool {
        // SAFETY: the worker lives as long as `self`, which one thread uses.
        unsafe { (self.api.ucp_worker_progress)(self.handle) != 0 }
    }

    /// Status of a request; frees it once it is complete.
    ///
    /// # Safety
    /// It must not have been freed.
    pub(super) unsafe fn finish(&self, request: UcpRequest) -> api::UcsStatus {
        let status = status_of(request);
        if status != api::IN_PROGRESS {
            return status; // no request, but its outcome
        }
        // SAFETY: it is a request that was not freed, as the caller promises.
        let status = unsafe { (self.api.ucp_request_check_status)(request) };
        if status != api::IN_PROGRESS {
            // SAFETY: as above; it is not used any more.
            unsafe { (self.api.ucp_request_free)(request) };
        }
        status
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: what was made is destroyed once, the worker first; its endpoints are closed.
        unsafe {
            if !self.handle.is_null() {
                (self.api.ucp_worker_destroy)(self.handle);
            }
            if !self.context.is_null() {
                (self.api.ucp_cleanup)(self.context);
            }
        }
    }
}
