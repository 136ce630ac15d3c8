//! The signing authority of each signer.
//!
//! Signers for different purposes may have different authorities: clients of the API server need not trust the
//! authority that signs kubelet serving certificates.

use std::time::Duration;

use super::authority::Authority;
use super::request::{API_CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY, Request};
use super::serving::KubeletServing;
use crate::Error;

/// A certificate authority, in PEM.
#[derive(Clone)]
pub struct SigningAuthority {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for SigningAuthority {
    /// Hides the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningAuthority").finish_non_exhaustive()
    }
}

/// The authority of each Kubernetes signer. Another process signs the requests of a signer without one.
#[derive(Clone, Debug, Default)]
pub struct SigningAuthorities {
    pub kubelet_serving: Option<SigningAuthority>,
    pub kubelet_client: Option<SigningAuthority>,
    pub api_client: Option<SigningAuthority>,
    pub legacy: Option<SigningAuthority>,
}

impl SigningAuthorities {
    /// Returns one authority for all signers.
    pub fn all(authority: SigningAuthority) -> SigningAuthorities {
        SigningAuthorities {
            kubelet_serving: Some(authority.clone()),
            kubelet_client: Some(authority.clone()),
            api_client: Some(authority.clone()),
            legacy: Some(authority),
        }
    }
}

/// The loaded authorities.
#[derive(Default)]
pub struct Signers {
    authorities: Vec<(&'static str, Authority)>,
    /// The names that no kubelet may serve under, whichever approver took the request.
    serving: Option<KubeletServing>,
}

impl Signers {
    pub fn new(
        authorities: &SigningAuthorities,
        lifetime: Duration,
        serving: Option<KubeletServing>,
    ) -> Result<Signers, Error> {
        let named = [
            (KUBELET_SERVING, &authorities.kubelet_serving),
            (KUBELET_CLIENT, &authorities.kubelet_client),
            (API_CLIENT, &authorities.api_client),
            (LEGACY, &authorities.legacy),
        ];
        let read = |(signer, pair): (&'static str, &SigningAuthority)| {
            let authority = Authority::new(&pair.certificate, &pair.key, lifetime);
            Ok((signer, authority.map_err(Error::SigningAuthority)?))
        };
        let present = named.into_iter().filter_map(|(signer, pair)| Some((signer, pair.as_ref()?)));
        Ok(Signers { authorities: present.map(read).collect::<Result<_, Error>>()?, serving })
    }

    pub fn is_empty(&self) -> bool {
        self.authorities.is_empty()
    }

    /// Returns the authority of a signer.
    pub fn of(&self, signer: &str) -> Option<&Authority> {
        self.authorities.iter().find(|(name, _)| *name == signer).map(|(_, authority)| authority)
    }

    /// Checks whether a signer may sign a request.
    pub fn check(&self, signer: &str, request: &Request, usages: &[String]) -> Result<(), String> {
        request.check(signer, usages)?;
        match &self.serving {
            Some(serving) if signer == KUBELET_SERVING => serving.check_all(&request.names),
            _ => Ok(()),
        }
    }
}
