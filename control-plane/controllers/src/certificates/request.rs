//! The rules of Kubernetes' signers: the requests that each of them signs.
//!
//! A request is fully parsed (`corten_api::CertificateRequest`), so the rules cover everything that the certificate
//! will contain. The signature of the request is verified before any rule applies.

use std::collections::BTreeSet;

use corten_api::{AlternativeName, CertificateRequest};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const API_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// A request with a verified signature.
pub struct Request(CertificateRequest);

impl std::ops::Deref for Request {
    type Target = CertificateRequest;

    fn deref(&self) -> &CertificateRequest {
        &self.0
    }
}

impl Request {
    pub fn parse(pem: &[u8]) -> Result<Request, String> {
        let request = CertificateRequest::parse(pem).map_err(|error| error.to_string())?;
        let (_, parsed) = X509CertificationRequest::from_der(&request.der).map_err(|error| error.to_string())?;
        parsed
            .verify_signature()
            .map_err(|error| format!("unable to verify certificate request signature: {error}"))?;
        Ok(Request(request))
    }

    /// Reports whether the signer may sign the request, or the reason against it.
    pub fn check(&self, signer: &str, usages: &[String]) -> Result<(), String> {
        match signer {
            KUBELET_CLIENT => self.check_kubelet_client(usages),
            KUBELET_SERVING => self.check_kubelet_serving(usages),
            API_CLIENT => check_client_usages(usages),
            LEGACY => Ok(()),
            _ => Err("not a signer of Kubernetes".to_owned()),
        }
    }

    pub fn check_kubelet_client(&self, usages: &[String]) -> Result<(), String> {
        self.check_node()?;
        for form in ["DNS", "Email", "IP", "URI"] {
            self.refuse_form(form)?;
        }
        self.check_node_name()?;
        check_exact_usages(usages, "client auth")
    }

    pub fn check_kubelet_serving(&self, usages: &[String]) -> Result<(), String> {
        self.check_node()?;
        let has_name = self.dns_names().next().is_some() || self.addresses().next().is_some();
        refuse(!has_name, "DNS or IP subjectAltName is required")?;
        self.refuse_form("Email")?;
        self.refuse_form("URI")?;
        check_exact_usages(usages, "server auth")?;
        self.check_node_name()
    }

    fn check_node(&self) -> Result<(), String> {
        refuse(self.organizations != ["system:nodes"], "subject organization is not system:nodes")?;
        refuse(self.has_other_attributes, "subject has attributes beside organization and common name")
    }

    fn refuse_form(&self, form: &str) -> Result<(), String> {
        let is_there = self.names.iter().any(|name| form_of(name) == form);
        refuse(is_there, &format!("{form} subjectAltNames are not allowed"))
    }

    fn check_node_name(&self) -> Result<(), String> {
        let named = self.common_name.starts_with("system:node:");
        refuse(!named, "subject common name does not begin with system:node:")
    }
}

fn form_of(name: &AlternativeName) -> &'static str {
    match name {
        AlternativeName::Dns(_) => "DNS",
        AlternativeName::Address(_) => "IP",
        AlternativeName::Email(_) => "Email",
        AlternativeName::Uri(_) => "URI",
    }
}

fn refuse(refused: bool, why: &str) -> Result<(), String> {
    if refused { Err(why.to_owned()) } else { Ok(()) }
}

/// Checks the usages of a kubelet, with or without the one that only RSA keys need.
fn check_exact_usages(usages: &[String], purpose: &str) -> Result<(), String> {
    let requested: BTreeSet<&str> = usages.iter().map(String::as_str).collect();
    let full = BTreeSet::from(["digital signature", "key encipherment", purpose]);
    let short = BTreeSet::from(["digital signature", purpose]);
    let listed = full.iter().copied().collect::<Vec<_>>().join(" ");
    refuse(requested != full && requested != short, &format!("usages did not match [{listed}]"))
}

fn check_client_usages(usages: &[String]) -> Result<(), String> {
    let optional = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|usage| !optional.contains(&usage.as_str())) {
        return Err(format!("invalid usage for client certificate: {other}"));
    }
    let has = usages.iter().any(|usage| usage == "client auth");
    refuse(!has, "missing required usage for client certificate: client auth")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    /// Returns a request for a subject and names, in PEM.
    pub fn request(common_name: &str, organization: &str, names: &[&str]) -> String {
        let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    fn usages(list: &[&str]) -> Vec<String> {
        list.iter().map(|usage| (*usage).to_owned()).collect()
    }

    #[test]
    fn each_signer_grants_what_it_is_for() {
        let client = usages(&["digital signature", "client auth"]);
        let serving = usages(&["digital signature", "key encipherment", "server auth"]);
        let node = ("system:node:a", "system:nodes");
        for (signer, (name, organization), names, usages, expected) in [
            (KUBELET_CLIENT, node, &[][..], &client, Ok(())),
            (KUBELET_CLIENT, node, &["a.example"], &client, Err("DNS subjectAltNames are not allowed")),
            (
                KUBELET_CLIENT,
                ("a", "system:nodes"),
                &[],
                &client,
                Err("subject common name does not begin with system:node:"),
            ),
            (KUBELET_CLIENT, ("system:node:a", "x"), &[], &client, Err("subject organization is not system:nodes")),
            (
                KUBELET_CLIENT,
                node,
                &[],
                &serving,
                Err("usages did not match [client auth digital signature key encipherment]"),
            ),
            (KUBELET_SERVING, node, &["a.example", "10.0.0.1"], &serving, Ok(())),
            (KUBELET_SERVING, node, &[], &serving, Err("DNS or IP subjectAltName is required")),
            (API_CLIENT, ("jane", "dev"), &[], &client, Ok(())),
            (API_CLIENT, ("jane", "dev"), &[], &serving, Err("invalid usage for client certificate: server auth")),
            (LEGACY, ("x", "y"), &[], &serving, Ok(())),
        ] {
            let request = Request::parse(request(name, organization, names).as_bytes()).unwrap();
            let checked = request.check(signer, usages);
            assert_eq!(checked, expected.map_err(str::to_owned), "{signer} {name} {names:?} {usages:?}");
        }
        let own = Request::parse(request("a", "b", &[]).as_bytes()).unwrap();
        assert!(own.check("example.com/other", &client).is_err());
    }

    #[test]
    fn a_forged_request_is_not_read() {
        let pem = request("system:node:a", "system:nodes", &[]);
        let (_, parsed) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let mut forged = parsed.contents.clone();
        let place = forged.windows(6).position(|window| window == b"node:a").unwrap();
        forged[place + 5] = b'b';
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(forged);
        let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n");
        assert!(Request::parse(pem.as_bytes()).is_err_and(|error| error.contains("signature")));
        assert!(Request::parse(b"nonsense").is_err());
    }

    proptest::proptest! {
        /// Any input is parsed or rejected, without a panic.
        #[test]
        fn any_bytes_are_read_or_refused(noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300), wrapped: bool) {
            use base64::Engine;
            let text = base64::engine::general_purpose::STANDARD.encode(&noise);
            let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n");
            let sent = if wrapped { pem.into_bytes() } else { noise };
            proptest::prop_assert!(Request::parse(&sent).is_err());
        }

        /// The order of usages does not matter to any signer, and the same request has the same result.
        #[test]
        fn signers_do_not_mind_the_order_of_usages(chosen in proptest::sample::subsequence(
            vec!["digital signature", "key encipherment", "client auth", "server auth", "any"], 0..5), signer in 0usize..4) {
            let request = Request::parse(REQUEST.as_bytes()).unwrap();
            let signer = [KUBELET_CLIENT, KUBELET_SERVING, API_CLIENT, LEGACY][signer];
            let forwards = usages(&chosen);
            let backwards: Vec<String> = forwards.iter().rev().cloned().collect();
            let granted = |usages: &[String]| request.check(signer, usages).is_ok();
            proptest::prop_assert_eq!(granted(&forwards), granted(&backwards));
            proptest::prop_assert_eq!(request.check(signer, &forwards), request.check(signer, &forwards));
        }
    }

    /// One request for all cases: generating keys takes time.
    static REQUEST: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| request("system:node:a", "system:nodes", &[]));
}
