//! What a signing request asks for, and whether the signer it names may grant it.

use std::collections::BTreeSet;

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::FromDer;

pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const API_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// A request whose signature is good.
pub struct Request {
    pub common_name: String,
    organizations: Vec<String>,
    /// How many alternative names there are of each form.
    dns_names: usize,
    addresses: usize,
    emails: usize,
    uris: usize,
    /// The subject, the key and the alternative names as they were encoded: they pass into the certificate untouched.
    pub subject: Vec<u8>,
    pub public_key: Vec<u8>,
    pub alternative_names: Option<Vec<u8>>,
}

impl Request {
    pub fn parse(pem: &[u8]) -> Result<Request, String> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem).map_err(|error| error.to_string())?;
        if pem.label != "CERTIFICATE REQUEST" {
            return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
        }
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).map_err(|error| error.to_string())?;
        request
            .verify_signature()
            .map_err(|error| format!("unable to verify certificate request signature: {error}"))?;
        let info = &request.certification_request_info;
        let text =
            |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
        let mut parsed = Request {
            common_name: info.subject.iter_common_name().find_map(text).unwrap_or_default(),
            organizations: info.subject.iter_organization().filter_map(text).collect(),
            dns_names: 0,
            addresses: 0,
            emails: 0,
            uris: 0,
            subject: info.subject.as_raw().to_vec(),
            public_key: info.subject_pki.raw.to_vec(),
            alternative_names: None,
        };
        for attribute in info.iter_attributes() {
            let ParsedCriAttribute::ExtensionRequest(extensions) = attribute.parsed_attribute() else { continue };
            for extension in extensions.extensions.iter().filter(|one| one.oid == OID_X509_EXT_SUBJECT_ALT_NAME) {
                parsed.alternative_names = Some(extension.value.to_vec());
                if let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() {
                    names.general_names.iter().for_each(|name| parsed.count(name));
                }
            }
        }
        Ok(parsed)
    }

    fn count(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(_) => self.dns_names += 1,
            GeneralName::IPAddress(_) => self.addresses += 1,
            GeneralName::RFC822Name(_) => self.emails += 1,
            GeneralName::URI(_) => self.uris += 1,
            _ => {}
        }
    }

    /// Whether the signer may grant the request; none for a signer that is not ours.
    pub fn check(&self, signer: &str, usages: &[String]) -> Option<Result<(), String>> {
        match signer {
            KUBELET_CLIENT => Some(self.check_kubelet_client(usages)),
            KUBELET_SERVING => Some(self.check_kubelet_serving(usages)),
            API_CLIENT => Some(check_client_usages(usages)),
            LEGACY => Some(Ok(())),
            _ => None,
        }
    }

    pub fn check_kubelet_client(&self, usages: &[String]) -> Result<(), String> {
        self.check_node()?;
        for (count, form) in
            [(self.dns_names, "DNS"), (self.emails, "Email"), (self.addresses, "IP"), (self.uris, "URI")]
        {
            refuse(count > 0, &format!("{form} subjectAltNames are not allowed"))?;
        }
        self.check_node_name()?;
        check_exact_usages(usages, "client auth")
    }

    fn check_kubelet_serving(&self, usages: &[String]) -> Result<(), String> {
        self.check_node()?;
        refuse(self.dns_names + self.addresses == 0, "DNS or IP subjectAltName is required")?;
        refuse(self.emails > 0, "Email subjectAltNames are not allowed")?;
        refuse(self.uris > 0, "URI subjectAltNames are not allowed")?;
        check_exact_usages(usages, "server auth")?;
        self.check_node_name()
    }

    fn check_node(&self) -> Result<(), String> {
        refuse(self.organizations != ["system:nodes"], "subject organization is not system:nodes")
    }

    fn check_node_name(&self) -> Result<(), String> {
        let named = self.common_name.starts_with("system:node:");
        refuse(!named, "subject common name does not begin with system:node:")
    }
}

fn refuse(refused: bool, why: &str) -> Result<(), String> {
    if refused { Err(why.to_owned()) } else { Ok(()) }
}

/// The usages of a kubelet, with or without the one that only RSA keys need.
fn check_exact_usages(usages: &[String], purpose: &str) -> Result<(), String> {
    let asked: BTreeSet<&str> = usages.iter().map(String::as_str).collect();
    let full = BTreeSet::from(["digital signature", "key encipherment", purpose]);
    let short = BTreeSet::from(["digital signature", purpose]);
    let listed = full.iter().copied().collect::<Vec<_>>().join(" ");
    refuse(asked != full && asked != short, &format!("usages did not match [{listed}]"))
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

    /// A request for a subject and names, in PEM.
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
            let checked = request.check(signer, usages).unwrap();
            assert_eq!(checked, expected.map_err(str::to_owned), "{signer} {name} {names:?} {usages:?}");
        }
        let own = Request::parse(request("a", "b", &[]).as_bytes()).unwrap();
        assert!(own.check("example.com/other", &client).is_none());
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
        /// Whatever is sent is read or refused, never more.
        #[test]
        fn any_bytes_are_read_or_refused(noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300), wrapped: bool) {
            use base64::Engine;
            let text = base64::engine::general_purpose::STANDARD.encode(&noise);
            let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n");
            let sent = if wrapped { pem.into_bytes() } else { noise };
            proptest::prop_assert!(Request::parse(&sent).is_err());
        }

        /// The order of usages does not matter to any signer, and the same question has the same answer.
        #[test]
        fn signers_do_not_mind_the_order_of_usages(chosen in proptest::sample::subsequence(
            vec!["digital signature", "key encipherment", "client auth", "server auth", "any"], 0..5), signer in 0usize..4) {
            let request = Request::parse(REQUEST.as_bytes()).unwrap();
            let signer = [KUBELET_CLIENT, KUBELET_SERVING, API_CLIENT, LEGACY][signer];
            let forwards = usages(&chosen);
            let backwards: Vec<String> = forwards.iter().rev().cloned().collect();
            let granted = |usages: &[String]| request.check(signer, usages).map(|answer| answer.is_ok());
            proptest::prop_assert_eq!(granted(&forwards), granted(&backwards));
            proptest::prop_assert_eq!(request.check(signer, &forwards), request.check(signer, &forwards));
        }
    }

    /// One request for all cases: making keys takes time.
    static REQUEST: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| request("system:node:a", "system:nodes", &[]));
}
