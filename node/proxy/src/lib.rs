//! Services to nf_tables
