/* The few Kafka messages the benchmark speaks, built and checked the same way on both ends.
 *
 * Both ends use one topic with one partition. Numbers are big-endian; "compact" lengths are
 * unsigned varints of length + 1, as in Kafka's flexible versions (KIP-482).
 */
#ifndef RELAY_BENCH_WIRE_H
#define RELAY_BENCH_WIRE_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PRODUCE = 0, FETCH = 1, METADATA = 3, API_VERSIONS = 18, DESCRIBE_CONFIGS = 32, DESCRIBE_CLUSTER = 60 };
enum { PRODUCE_VERSION = 9, FETCH_VERSION = 12, METADATA_VERSION = 12, API_VERSIONS_VERSION = 3 };

#define TOPIC "relay-bench"
#define VERIFIED_FRAMES 3        /* per connection, during warm-up: every byte is looked at */
#define TOGETHER_TIMEOUT_MS 30001 /* a Produce timeout that asks the null broker to share writes between replies */
#define FNV_START 0xcbf29ce484222325ULL

static _Noreturn inline void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "unexpected bytes");
    exit(1);
}

static inline void *must_alloc(size_t bytes) {
    void *block = malloc(bytes);
    if (!block) die("malloc");
    return block;
}

/* ---- reading ---- */

static inline int16_t get16(const uint8_t *p) { return (int16_t)(p[0] << 8 | p[1]); }
static inline int32_t get32(const uint8_t *p) {
    return (int32_t)((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
}

static inline uint64_t fnv1a(uint64_t hash, const uint8_t *p, size_t n) {
    while (n--) hash = (hash ^ *p++) * 0x100000001b3ULL;
    return hash;
}

/* A request's head. `body` is where the body starts, past the flexible header's empty tag buffer. */
struct request_head {
    int16_t api_key, version;
    int32_t correlation_id;
    size_t body;
};

static inline int is_flexible(int16_t api_key, int16_t version) {
    switch (api_key) {
    case PRODUCE: return version >= 9;
    case FETCH: return version >= 12;
    case METADATA: return version >= 9;
    case API_VERSIONS: return version >= 3;
    case DESCRIBE_CONFIGS: return version >= 4;
    default: return 1;
    }
}

/* Reads the head of a frame whose size prefix is included; 0 when `have` bytes are too few. */
static inline int read_request_head(const uint8_t *frame, size_t have, struct request_head *head) {
    if (have < 14) return 0;
    head->api_key = get16(frame + 4);
    head->version = get16(frame + 6);
    head->correlation_id = get32(frame + 8);
    int16_t client_id = get16(frame + 12);
    head->body = 14 + (client_id > 0 ? (size_t)client_id : 0);
    if (is_flexible(head->api_key, head->version)) head->body += 1;
    return head->body <= have;
}

/* ---- writing ---- */

struct writer { uint8_t *at; };

static inline void put8(struct writer *w, int v) { *w->at++ = (uint8_t)v; }
static inline void put16(struct writer *w, int v) { put8(w, v >> 8); put8(w, v); }
static inline void put32(struct writer *w, int64_t v) { put16(w, (int)(v >> 16)); put16(w, (int)v); }
static inline void put64(struct writer *w, int64_t v) { put32(w, v >> 32); put32(w, v); }
static inline void put_uvarint(struct writer *w, uint32_t v) {
    while (v >= 0x80) { put8(w, (int)(v | 0x80)); v >>= 7; }
    put8(w, (int)v);
}
static inline void put_bytes(struct writer *w, const void *p, size_t n) { memcpy(w->at, p, n); w->at += n; }
static inline void put_string(struct writer *w, const char *s) { put16(w, (int)strlen(s)); put_bytes(w, s, strlen(s)); }
static inline void put_compact(struct writer *w, const char *s) {
    put_uvarint(w, (uint32_t)strlen(s) + 1);
    put_bytes(w, s, strlen(s));
}
/* A string in the version's own encoding. */
static inline void put_text(struct writer *w, int flexible, const char *s) {
    if (flexible) put_compact(w, s); else put_string(w, s);
}
static inline void put_count(struct writer *w, int flexible, uint32_t n) {
    if (flexible) put_uvarint(w, n + 1); else put32(w, n);
}
static inline void put_null_text(struct writer *w, int flexible) {
    if (flexible) put8(w, 0); else put16(w, -1);
}
static inline void put_tags(struct writer *w, int flexible) { if (flexible) put8(w, 0); }

/* Fills the size prefix of the frame that starts at `frame` and ends at the writer. */
static inline size_t finish_frame(uint8_t *frame, struct writer *w) {
    size_t total = (size_t)(w->at - frame);
    struct writer size = {frame};
    put32(&size, (int64_t)total - 4);
    return total;
}

static inline void begin_request(struct writer *w, int api_key, int version, int32_t correlation_id, const char *client_id) {
    put32(w, 0);
    put16(w, api_key);
    put16(w, version);
    put32(w, correlation_id);
    put_string(w, client_id);
    put8(w, 0);
}

/* A record batch as far as anyone on the way may look: lengths and magic are right, the rest is a pattern. */
static inline void put_records(struct writer *w, uint32_t bytes) {
    uint8_t *start = w->at;
    for (uint32_t i = 0; i < bytes; i++) start[i] = (uint8_t)(i * 131 + (i >> 8));
    if (bytes >= 61) {
        put64(w, 0);
        put32(w, (int64_t)bytes - 12);
        put32(w, 0);
        put8(w, 2);
    }
    w->at = start + bytes;
}

static inline size_t build_produce_request(uint8_t *frame, const char *client_id, uint32_t record_bytes, int timeout_ms) {
    struct writer w = {frame};
    begin_request(&w, PRODUCE, PRODUCE_VERSION, 0, client_id);
    put8(&w, 0);                 /* no transactional id */
    put16(&w, 1);                /* acks */
    put32(&w, timeout_ms);
    put_uvarint(&w, 2);
    put_compact(&w, TOPIC);
    put_uvarint(&w, 2);
    put32(&w, 0);
    put_uvarint(&w, record_bytes + 1);
    put_records(&w, record_bytes);
    put_bytes(&w, "\0\0\0", 3);  /* tag buffers of partition, topic, request */
    return finish_frame(frame, &w);
}

/* `throttle_at` tells where throttle_time_ms lies: the one field a gateway may change. */
static inline size_t build_produce_reply(uint8_t *frame, int32_t correlation_id, size_t *throttle_at) {
    struct writer w = {frame};
    put32(&w, 0);
    put32(&w, correlation_id);
    put8(&w, 0);
    put_uvarint(&w, 2);
    put_compact(&w, TOPIC);
    put_uvarint(&w, 2);
    put32(&w, 0);
    put16(&w, 0);
    put64(&w, 0);                /* base offset */
    put64(&w, -1);               /* log append time */
    put64(&w, 0);                /* log start offset */
    put_uvarint(&w, 1);          /* no record errors */
    put8(&w, 0);                 /* no error message */
    put_bytes(&w, "\0\0", 2);
    *throttle_at = (size_t)(w.at - frame);
    put32(&w, 0);
    put8(&w, 0);
    return finish_frame(frame, &w);
}

/* The null broker answers with as many record bytes as `max_bytes` names. */
#define FETCH_MAX_BYTES_AT 12
static inline size_t build_fetch_request(uint8_t *frame, const char *client_id, uint32_t record_bytes) {
    struct writer w = {frame};
    begin_request(&w, FETCH, FETCH_VERSION, 0, client_id);
    put32(&w, -1);               /* a consumer, not a replica */
    put32(&w, 500);
    put32(&w, 1);
    put32(&w, record_bytes);     /* max_bytes */
    put8(&w, 0);
    put32(&w, 0);
    put32(&w, -1);               /* no fetch session */
    put_uvarint(&w, 2);
    put_compact(&w, TOPIC);
    put_uvarint(&w, 2);
    put32(&w, 0);
    put32(&w, -1);
    put64(&w, 0);
    put32(&w, -1);
    put64(&w, -1);
    put32(&w, record_bytes);
    put_bytes(&w, "\0\0", 2);
    put_uvarint(&w, 1);          /* no forgotten topics */
    put_compact(&w, "");         /* no rack */
    put8(&w, 0);
    return finish_frame(frame, &w);
}

#define FETCH_THROTTLE_AT 9
static inline size_t build_fetch_reply(uint8_t *frame, uint32_t record_bytes) {
    struct writer w = {frame};
    put32(&w, 0);
    put32(&w, 0);                /* correlation id, written per reply */
    put8(&w, 0);
    put32(&w, 0);                /* throttle_time_ms */
    put16(&w, 0);
    put32(&w, 0);
    put_uvarint(&w, 2);
    put_compact(&w, TOPIC);
    put_uvarint(&w, 2);
    put32(&w, 0);
    put16(&w, 0);
    put64(&w, 1000000000);       /* high watermark */
    put64(&w, 1000000000);
    put64(&w, 0);
    put8(&w, 0);                 /* aborted transactions: null */
    put32(&w, -1);
    put_uvarint(&w, record_bytes + 1);
    put_records(&w, record_bytes);
    put_bytes(&w, "\0\0\0", 3);
    return finish_frame(frame, &w);
}

/* ---- sockets ---- */

static inline struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static inline int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in address = loopback(port);
    if (fd < 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) die("listen");
    return fd;
}

static inline void set_nodelay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

#endif
