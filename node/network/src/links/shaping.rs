//! Token buckets: the rate limit of a link.

use futures::StreamExt;
use rtnetlink::packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};

use super::Links;
use crate::error::Error;

/// Attributes of the token bucket (`linux/pkt_sched.h`).
const TBF_PARMS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
/// The link layer of a rate that the kernel computes itself.
const LINKLAYER_ETHERNET: u8 = 1;
/// The least burst: it must hold a packet of segmentation offload.
const LEAST_BURST: u64 = 64 * 1024;

impl Links {
    /// Limits the rate of a link to so many bits a second.
    pub async fn limit(&self, link: u32, bits: u64) -> Result<(), Error> {
        let mut message = TcMessage::with_index(i32::try_from(link).unwrap_or_default());
        message.header.parent = TcHandle::ROOT;
        message.header.handle = TcHandle { major: 1, minor: 0 };
        message.attributes.push(TcAttribute::Kind("tbf".to_owned()));
        let options = token_bucket(bits / 8).map(|(kind, bytes)| TcOption::Other(DefaultNla::new(kind, bytes)));
        message.attributes.push(TcAttribute::Options(options.to_vec()));
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(message));
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let failed = || Error::link(format!("limit link {link} to {bits} bit/s"));
        let mut answers = self.handle.clone().request(request).map_err(failed())?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload
                && error.code.is_some()
            {
                return Err(failed()(rtnetlink::Error::NetlinkError(error)));
            }
        }
        Ok(())
    }
}

/// Returns the attributes of a bucket that fills with so many bytes a second. It holds a twentieth of a second's bytes,
/// and a fortieth's may wait.
fn token_bucket(rate: u64) -> [(u16, Vec<u8>); 3] {
    let burst = (rate / 20).max(LEAST_BURST).min(u32::MAX.into());
    let waiting = (rate / 40).saturating_add(burst).min(u32::MAX.into());
    let narrow = u32::try_from(rate).unwrap_or(u32::MAX);
    // struct tc_tbf_qopt: rate, peak rate, limit, buffer, mtu; a rate is eight bytes of cells, then bytes a second.
    let mut parameters = vec![0, LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    parameters.extend(narrow.to_ne_bytes());
    parameters.extend([0; 12]);
    parameters.extend((waiting as u32).to_ne_bytes());
    parameters.extend([0; 8]);
    [
        (TBF_PARMS, parameters),
        (TBF_RATE64, rate.to_ne_bytes().to_vec()),
        (TBF_BURST, (burst as u32).to_ne_bytes().to_vec()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_a_twentieth_of_a_second_and_never_less_than_a_large_packet() {
        let burst = |rate: u64| u32::from_ne_bytes(token_bucket(rate)[2].1.clone().try_into().unwrap());
        assert_eq!(burst(1_000), 65_536);
        assert_eq!(burst(20_000_000), 1_000_000);
        assert_eq!(token_bucket(1)[0].1.len(), 36);
    }
}
