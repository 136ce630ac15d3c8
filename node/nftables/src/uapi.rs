//! Numbers of the kernel's nf_tables and ctnetlink interfaces (`linux/netfilter/nf_tables.h`,
//! `nfnetlink.h`, `nfnetlink_conntrack.h`). Facts only: no logic lives here.

/// The address family a table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    /// IPv4 and IPv6 together.
    Inet = 1,
    Ipv4 = 2,
    Arp = 3,
    Netdev = 5,
    Bridge = 7,
    Ipv6 = 10,
}

impl Family {
    pub(crate) fn from_number(number: u8) -> Option<Family> {
        [Family::Inet, Family::Ipv4, Family::Arp, Family::Netdev, Family::Bridge, Family::Ipv6]
            .into_iter()
            .find(|family| *family as u8 == number)
    }
}

pub const NFPROTO_UNSPEC: u8 = 0;

pub const SUBSYS_CTNETLINK: u16 = 1;
pub const SUBSYS_NFTABLES: u16 = 10;
pub const MSG_BATCH_BEGIN: u16 = 16;
pub const MSG_BATCH_END: u16 = 17;
pub const BATCH_GENID: u16 = 1;

pub const NLMSG_ERROR: u16 = 2;
pub const NLMSG_DONE: u16 = 3;
pub const NLM_F_REQUEST: u16 = 1;
pub const NLM_F_ACK: u16 = 4;
pub const NLM_F_DUMP_INTR: u16 = 0x10;
pub const NLM_F_CAPPED: u16 = 0x100;
pub const NLM_F_ACK_TLVS: u16 = 0x200;
pub const NLM_F_DUMP: u16 = 0x300;
pub const NLM_F_CREATE: u16 = 0x400;
pub const NLM_F_APPEND: u16 = 0x800;
pub const NLMSGERR_ATTR_MSG: u16 = 1;
pub const NLA_F_NESTED: u16 = 0x8000;
pub const NLA_TYPE_MASK: u16 = 0x3fff;

pub const MSG_NEWTABLE: u16 = 0;
pub const MSG_GETTABLE: u16 = 1;
pub const MSG_DELTABLE: u16 = 2;
pub const MSG_NEWCHAIN: u16 = 3;
pub const MSG_GETCHAIN: u16 = 4;
pub const MSG_DELCHAIN: u16 = 5;
pub const MSG_NEWRULE: u16 = 6;
pub const MSG_GETRULE: u16 = 7;
pub const MSG_DELRULE: u16 = 8;
pub const MSG_NEWSET: u16 = 9;
pub const MSG_GETSET: u16 = 10;
pub const MSG_DELSET: u16 = 11;
pub const MSG_NEWSETELEM: u16 = 12;
pub const MSG_GETSETELEM: u16 = 13;
pub const MSG_DELSETELEM: u16 = 14;
pub const MSG_GETGEN: u16 = 16;

pub const LIST_ELEM: u16 = 1;
pub const HOOK_HOOKNUM: u16 = 1;
pub const HOOK_PRIORITY: u16 = 2;
pub const GEN_ID: u16 = 1;

pub const TABLE_NAME: u16 = 1;

pub const CHAIN_TABLE: u16 = 1;
pub const CHAIN_NAME: u16 = 3;
pub const CHAIN_HOOK: u16 = 4;
pub const CHAIN_POLICY: u16 = 5;
pub const CHAIN_TYPE: u16 = 7;

pub const RULE_TABLE: u16 = 1;
pub const RULE_CHAIN: u16 = 2;
pub const RULE_HANDLE: u16 = 3;
pub const RULE_EXPRESSIONS: u16 = 4;
pub const RULE_USERDATA: u16 = 7;

pub const SET_TABLE: u16 = 1;
pub const SET_NAME: u16 = 2;
pub const SET_FLAGS: u16 = 3;
pub const SET_KEY_TYPE: u16 = 4;
pub const SET_KEY_LEN: u16 = 5;
pub const SET_DATA_TYPE: u16 = 6;
pub const SET_DATA_LEN: u16 = 7;
pub const SET_DESC: u16 = 9;
pub const SET_ID: u16 = 10;
pub const SET_TIMEOUT: u16 = 11;
pub const SET_DESC_SIZE: u16 = 1;
pub const SET_DESC_CONCAT: u16 = 2;
pub const SET_FIELD_LEN: u16 = 1;
pub const SET_F_INTERVAL: u32 = 4;
pub const SET_F_MAP: u32 = 8;
pub const SET_F_TIMEOUT: u32 = 16;
pub const SET_F_EVAL: u32 = 32;
pub const SET_F_CONCAT: u32 = 128;
pub const DATA_TYPE_VERDICT: u32 = 0xffff_ff00;

pub const ELEM_LIST_TABLE: u16 = 1;
pub const ELEM_LIST_SET: u16 = 2;
pub const ELEM_LIST_ELEMENTS: u16 = 3;
pub const ELEM_KEY: u16 = 1;
pub const ELEM_DATA: u16 = 2;
pub const ELEM_FLAGS: u16 = 3;
pub const ELEM_TIMEOUT: u16 = 4;
pub const ELEM_KEY_END: u16 = 10;
pub const ELEM_F_INTERVAL_END: u32 = 1;

pub const DATA_VALUE: u16 = 1;
pub const DATA_VERDICT: u16 = 2;
pub const VERDICT_CODE: u16 = 1;
pub const VERDICT_CHAIN: u16 = 2;
pub const EXPR_NAME: u16 = 1;
pub const EXPR_DATA: u16 = 2;

pub const REG_VERDICT: u32 = 0;
pub const REG32_00: u32 = 8;

pub const META_MARK: u32 = 3;
pub const META_IIFNAME: u32 = 6;
pub const META_OIFNAME: u32 = 7;
pub const META_NFPROTO: u32 = 15;
pub const META_L4PROTO: u32 = 16;
pub const CT_STATE: u32 = 0;
pub const CT_DIRECTION: u32 = 1;
pub const CT_STATUS: u32 = 2;
pub const CT_MARK: u32 = 3;
pub const CT_PROTO_DST: u32 = 12;
pub const CT_DST_IP: u32 = 20;
pub const CT_DST_IP6: u32 = 22;
pub const CT_DIRECTION_ORIGINAL: u8 = 0;
pub const PAYLOAD_LINK: u32 = 0;
pub const PAYLOAD_NETWORK: u32 = 1;
pub const PAYLOAD_TRANSPORT: u32 = 2;
pub const FIB_RESULT_ADDRTYPE: u32 = 3;
pub const FIB_F_SADDR: u32 = 1;
pub const FIB_F_DADDR: u32 = 2;
pub const NG_RANDOM: u32 = 1;
pub const LOOKUP_F_INV: u32 = 1;

pub const CT_GET: u16 = 1;
pub const CT_DELETE: u16 = 2;
pub const CTA_TUPLE_ORIG: u16 = 1;
pub const CTA_TUPLE_REPLY: u16 = 2;
pub const CTA_TUPLE_IP: u16 = 1;
pub const CTA_TUPLE_PROTO: u16 = 2;
pub const CTA_IP_V4_SRC: u16 = 1;
pub const CTA_IP_V4_DST: u16 = 2;
pub const CTA_IP_V6_SRC: u16 = 3;
pub const CTA_IP_V6_DST: u16 = 4;
pub const CTA_PROTO_NUM: u16 = 1;
pub const CTA_PROTO_SRC_PORT: u16 = 2;
pub const CTA_PROTO_DST_PORT: u16 = 3;
