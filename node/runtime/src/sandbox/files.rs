//! The files of a sandbox that its containers see: host name, hosts and resolv.conf.

use std::path::Path;

use corten_cri::v1;

use crate::Error;

/// Writes the files into the sandbox's folder.
pub(crate) fn write(folder: &Path, hostname: &str, dns: Option<&v1::DnsConfig>) -> Result<(), Error> {
    let write = |name: &str, content: String| {
        let path = folder.join(name);
        std::fs::write(&path, content).map_err(Error::file("write", &path))
    };
    let node = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    write("hostname", format!("{hostname}\n"))?;
    write("hosts", node("/etc/hosts"))?;
    // A pod without a DNS configuration uses the node's.
    write("resolv.conf", dns.map_or_else(|| node("/etc/resolv.conf"), resolv_conf))
}

/// Returns the content of resolv.conf; pure.
fn resolv_conf(dns: &v1::DnsConfig) -> String {
    let mut content = String::new();
    if !dns.searches.is_empty() {
        content.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        content.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        content.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_has_the_usual_order() {
        let words = |line: &str| line.split(' ').map(str::to_string).collect();
        let dns = v1::DnsConfig {
            servers: words("10.96.0.10"),
            searches: words("default.svc.cluster.local svc.cluster.local"),
            options: words("ndots:5"),
        };
        assert_eq!(
            resolv_conf(&dns),
            "search default.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
        );
        assert_eq!(resolv_conf(&v1::DnsConfig::default()), "");
    }
}
