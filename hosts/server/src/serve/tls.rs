//! TLS, if a certificate and a key are given.
use crate::options::Options;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// HTTPS with the certificate that was read last, or HTTP.
pub struct Tls(Mutex<Option<TlsAcceptor>>);

impl Tls {
    pub fn new(options: &Options) -> Result<Self, String> {
        acceptor(options).map(|acceptor| Self(Mutex::new(acceptor)))
    }

    /// Reads the files again. If that fails, nothing changes. Open connections keep the old certificate.
    pub fn reload(&self, options: &Options) -> Result<(), String> {
        let new = acceptor(options)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    pub fn now(&self) -> Option<TlsAcceptor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn acceptor(options: &Options) -> Result<Option<TlsAcceptor>, String> {
    let (cert, key) = match (&options.tls_cert, &options.tls_key) {
        (None, None) => return Ok(None),
        (Some(cert), Some(key)) => (cert, key),
        _ => return Err("--tls-cert and --tls-key belong together".into()),
    };
    let wrong = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| wrong(cert, &error))?;
    if chain.is_empty() {
        return Err(wrong(cert, &"it has no certificate"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, secret);
    let mut config = config.map_err(|error| wrong(cert, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}
