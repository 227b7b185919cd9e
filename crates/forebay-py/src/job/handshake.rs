//! `forebay._native.HandshakeKey`: how ranks prove to each other that they belong to a job.

use std::borrow::Cow;

use forebay_engine::handshake::{self, Side};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// See `python/forebay/_native.pyi`.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct HandshakeKey(handshake::HandshakeKey);

#[pymethods]
impl HandshakeKey {
    #[new]
    fn new(job: &str, loader: &str, secret: &[u8]) -> Self {
        let purpose = "forebay 2026 channel between the ranks of a job";
        Self(handshake::HandshakeKey::new(purpose, &[job, loader], secret))
    }

    #[pyo3(signature = (first, nonce, *, accepting))]
    fn proof(&self, first: &[u8], nonce: &[u8], accepting: bool) -> PyResult<Cow<'static, [u8]>> {
        Ok(self.0.proof(side(accepting), first, &array(nonce)?).to_vec().into())
    }

    #[pyo3(signature = (proof, first, nonce, *, accepting))]
    fn is_proved(&self, proof: &[u8], first: &[u8], nonce: &[u8], accepting: bool) -> PyResult<bool> {
        Ok(self.0.is_proved(side(accepting), first, &array(nonce)?, &array(proof)?))
    }
}

fn side(accepting: bool) -> Side {
    if accepting { Side::Accepting } else { Side::Connecting }
}

fn array(bytes: &[u8]) -> PyResult<[u8; 32]> {
    bytes.try_into().map_err(|_| PyValueError::new_err(format!("expected 32 bytes, found {}", bytes.len())))
}
