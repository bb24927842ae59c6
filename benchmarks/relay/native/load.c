/* The load: one client that sends valid Kafka frames and believes nothing it gets back.
 *
 * usage: load closed PORT CLIENT_ID produce|fetch|together FRAME_BYTES IN_FLIGHT WARM_UP REQUESTS
 *        load rate   PORT CLIENT_ID FRAME_BYTES WARM_UP REQUESTS PER_SECOND
 *        load idle   PORT CLIENT_ID CONNECTIONS
 *
 * closed: one connection, IN_FLIGHT requests outstanding, the next one leaves when a reply has come.
 *         Each request is a write of its own, as real clients do; "together" is produce
 *         with all that may leave in one write, and the null broker answers in the same way.
 * rate:   one connection, requests leave at fixed times; latency counts from the time intended (no coordinated
 *         omission). idle: connections that made one Produce request each, then stay silent.
 *
 * After connecting and warming up it prints {"warm": true} and waits for a line on stdin; after the measured part
 * it prints one JSON line and stays connected until stdin ends. Any wrong size, correlation id, error code or
 * content ends the program with status 1. FRAME_BYTES is the whole frame on the wire: the request's for produce,
 * the reply's for fetch.
 */
#include <poll.h>
#include <sys/prctl.h>
#include <time.h>

#include "wire.h"

#define STAGE (64 * 1024)
#define INPUT (256 * 1024)
#define REPLY_HEAD 64            /* bytes of each reply that are compared with what must come */

static const char *client_id;
static int fd, fetching, together;
static uint8_t *request, *reply, stage[STAGE], input[INPUT];
static size_t request_len, reply_len, throttle_at;
static uint64_t sent_requests, done_requests, allowed, request_bytes, reply_bytes, throttled, reply_hash = FNV_START;
static size_t stage_at, stage_len, big_at, in_len, skip;
static int verified;
static uint8_t big_head[12];

/* Open loop: when each request was meant to leave, and how late each reply came. */
static int64_t *intended_ns, *latency_ns;
static uint64_t measured_from;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- connecting: blocking, one request at a time ---- */

static void write_all(int to, const uint8_t *p, size_t n) {
    while (n) {
        ssize_t sent = send(to, p, n, MSG_NOSIGNAL);
        if (sent <= 0) die("send");
        p += sent;
        n -= (size_t)sent;
    }
}

static size_t read_frame(int from, uint8_t *frame, size_t room) {
    size_t have = 0, total = 4;
    while (have < total) {
        ssize_t n = recv(from, frame + have, total - have, 0);
        if (n == 0) errno = ECONNRESET;
        if (n <= 0) die("handshake: recv");
        have += (size_t)n;
        if (have == 4) total = (size_t)(uint32_t)get32(frame) + 4;
        if (total > room) die("handshake: reply too large");
    }
    return total;
}

static void require_version(const uint8_t *frame, size_t len, int api_key, int version) {
    for (size_t at = 11; at + 7 <= len; at += 7) {
        if (get16(frame + at) != api_key) continue;
        if (get16(frame + at + 2) <= version && version <= get16(frame + at + 4)) return;
        break;
    }
    fprintf(stderr, "handshake: api %d version %d is not offered\n", api_key, version);
    exit(1);
}

static int connect_and_shake_hands(int port) {
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = loopback(port);
    struct timeval patience = {.tv_sec = 10};
    if (s < 0 || connect(s, (struct sockaddr *)&address, sizeof address)) die("connect");
    set_nodelay(s);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    uint8_t frame[8192];
    struct writer w = {frame};
    begin_request(&w, API_VERSIONS, API_VERSIONS_VERSION, -2, client_id);
    put_compact(&w, "relay-bench");
    put_compact(&w, "1.0");
    put8(&w, 0);
    write_all(s, frame, finish_frame(frame, &w));
    size_t len = read_frame(s, frame, sizeof frame);
    if (len < 18 || get32(frame + 4) != -2 || get16(frame + 8) != 0) die("handshake: ApiVersions");
    require_version(frame, len, PRODUCE, PRODUCE_VERSION);
    require_version(frame, len, FETCH, FETCH_VERSION);
    require_version(frame, len, METADATA, METADATA_VERSION);
    w.at = frame;
    begin_request(&w, METADATA, METADATA_VERSION, -3, client_id);
    put_uvarint(&w, 1);          /* no topics */
    put_bytes(&w, "\0\0\0", 3);  /* may not create topics, no authorized operations, no tags */
    write_all(s, frame, finish_frame(frame, &w));
    len = read_frame(s, frame, sizeof frame);
    if (len < 24 || get32(frame + 4) != -3 || frame[13] != 2) die("handshake: Metadata");
    return s;
}

/* ---- sending ---- */

static void stamp(uint8_t *at, uint64_t number) {
    struct writer w = {at};
    put32(&w, (int64_t)(number & 0x7fffffff));
}

/* Sends whatever is allowed until the socket is full. */
static void pump_out(void) {
    for (;;) {
        ssize_t n;
        if (request_len <= STAGE / 4) {
            if (stage_at == stage_len) {
                stage_at = stage_len = 0;
                size_t room = together ? STAGE : request_len;
                while (sent_requests < allowed && stage_len + request_len <= room) {
                    memcpy(stage + stage_len, request, request_len);
                    stamp(stage + stage_len + 8, sent_requests++);
                    stage_len += request_len;
                }
                if (!stage_len) return;
            }
            n = send(fd, stage + stage_at, stage_len - stage_at, MSG_NOSIGNAL);
            if (n > 0) stage_at += (size_t)n;
        } else {
            if (sent_requests == allowed) return;
            memcpy(big_head, request, 12);
            stamp(big_head + 8, sent_requests);
            struct iovec parts[2] = {{big_head + big_at, 12 - big_at}, {request + 12, request_len - 12}};
            struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
            if (big_at >= 12) {
                parts[0] = (struct iovec){request + big_at, request_len - big_at};
                message.msg_iovlen = 1;
            }
            n = sendmsg(fd, &message, MSG_NOSIGNAL);
            if (n > 0 && (big_at += (size_t)n) == request_len) {
                big_at = 0;
                sent_requests++;
            }
        }
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) die("send");
        request_bytes += (uint64_t)n;
    }
}

/* ---- receiving ---- */

static void reply_done(void) {
    if (latency_ns && done_requests >= measured_from)
        latency_ns[done_requests - measured_from] = now_ns() - intended_ns[done_requests - measured_from];
    done_requests++;
    if (verified < VERIFIED_FRAMES) verified++;
}

/* Compares a reply's head with what it must be; only the correlation id and the throttle time may differ. */
static void check_head(const uint8_t *frame, size_t len) {
    uint8_t wanted[REPLY_HEAD];
    memcpy(wanted, reply, len);
    stamp(wanted + 4, done_requests);
    if (throttle_at + 4 <= len) {
        if (get32(frame + throttle_at)) throttled++;
        memcpy(wanted + throttle_at, frame + throttle_at, 4);
    }
    errno = 0;
    if (done_requests == sent_requests || memcmp(frame, wanted, len)) die("reply");
}

static void take(const uint8_t *data, size_t n) {
    if (verified < VERIFIED_FRAMES) reply_hash = fnv1a(reply_hash, data, n);
}

/* Takes what the socket holds; the rest of a big reply is dropped in the kernel. */
static void pump_in(void) {
    size_t head_len = reply_len < REPLY_HEAD ? reply_len : REPLY_HEAD;
    int lost = 0;
    for (;;) {
        ssize_t n;
        if (skip && verified >= VERIFIED_FRAMES) {
            n = recv(fd, NULL, skip, MSG_TRUNC);
            if (n <= 0) { lost = n == 0; break; }
            reply_bytes += (uint64_t)n;
            skip -= (size_t)n;
            if (!skip) reply_done();
            continue;
        }
        size_t room = fetching && !skip ? head_len - in_len : INPUT - in_len;
        n = recv(fd, input + in_len, room, 0);
        if (n <= 0) { lost = n == 0; break; }
        reply_bytes += (uint64_t)n;
        in_len += (size_t)n;
        size_t at = 0;
        while (at < in_len) {
            size_t have = in_len - at;
            if (skip) {
                size_t part = have < skip ? have : skip;
                take(input + at, part);
                skip -= part;
                at += part;
                if (!skip) reply_done();
            } else {
                if (have < head_len) break;
                check_head(input + at, head_len);
                take(input + at + 13, head_len - 13);
                skip = reply_len - head_len;
                at += head_len;
                if (!skip) reply_done();
            }
        }
        memmove(input, input + at, in_len - at);
        in_len -= at;
        if ((size_t)n < room && !skip) return;
    }
    if (!lost && errno == EAGAIN) return;
    if (lost) errno = ECONNRESET;
    die("recv");
}

static void run_closed(uint64_t until, uint64_t in_flight) {
    struct pollfd poll_fd = {.fd = fd};
    while (done_requests < until) {
        allowed = done_requests + in_flight < until ? done_requests + in_flight : until;
        pump_out();
        poll_fd.events = (short)(POLLIN | (sent_requests < allowed || stage_at < stage_len ? POLLOUT : 0));
        int ready = poll(&poll_fd, 1, 20000);
        if (ready == 0) { errno = ETIMEDOUT; die("no reply"); }
        if (poll_fd.revents & (POLLIN | POLLHUP | POLLERR)) pump_in();
    }
}

static void run_rate(uint64_t until, int64_t interval_ns) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    uint64_t first = sent_requests;
    int64_t start = now_ns() + interval_ns;
    while (done_requests < until) {
        int64_t now = now_ns(), due = start + (int64_t)(sent_requests - first) * interval_ns;
        if (sent_requests < until && now >= due) {
            if (latency_ns) intended_ns[sent_requests - measured_from] = due;
            allowed = sent_requests + 1;
            pump_out();
            continue;
        }
        int64_t wait = sent_requests < until ? due - now : 20000000000;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        if (ppoll(&poll_fd, 1, &timeout, NULL) > 0) pump_in();
        else if (sent_requests == until) { errno = ETIMEDOUT; die("no reply"); }
    }
}

/* ---- the three jobs ---- */

static void wait_for_go(void) {
    char line[16];
    printf("{\"warm\": true}\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

static void wait_for_end(void) {
    char line[16];
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {}
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Chooses the record size that makes the whole frame FRAME_BYTES long. */
static void build_messages(int is_fetch, uint32_t frame_bytes) {
    request = must_alloc(frame_bytes + 4096);
    reply = must_alloc(frame_bytes + 4096);
    fetching = is_fetch;
    uint8_t *measured = is_fetch ? reply : request;
    uint32_t records = frame_bytes;
    int timeout_ms = together ? TOGETHER_TIMEOUT_MS : 30000;
    size_t total = 0;
    for (int i = 0; i < 4 && total != frame_bytes; i++) {
        total = is_fetch ? build_fetch_reply(measured, records) : build_produce_request(measured, client_id, records, timeout_ms);
        records += frame_bytes - (uint32_t)total;
    }
    errno = 0;
    if (total != frame_bytes) die("this frame size cannot be made");
    if (is_fetch) {
        request_len = build_fetch_request(request, client_id, records);
        reply_len = total;
        throttle_at = FETCH_THROTTLE_AT;
    } else {
        request_len = total;
        reply_len = build_produce_reply(reply, 0, &throttle_at);
    }
}

static void print_result(int64_t elapsed_ns, uint64_t requests, uint64_t sent_before, uint64_t got_before) {
    printf("{\"requests\": %lu, \"request_bytes\": %lu, \"reply_bytes\": %lu, \"elapsed_ns\": %ld, "
           "\"throttled\": %lu, \"reply_hash\": %lu",
           requests, request_bytes - sent_before, reply_bytes - got_before, elapsed_ns, throttled, fetching ? reply_hash : 0);
}

int main(int argc, char **argv) {
    if (argc < 5) { fprintf(stderr, "usage: load closed|rate|idle PORT CLIENT_ID ... (see the source)\n"); return 2; }
    const char *mode = argv[1];
    int port = atoi(argv[2]);
    client_id = argv[3];
    prctl(PR_SET_TIMERSLACK, 1UL);
    if (!strcmp(mode, "idle")) {
        int connections = atoi(argv[4]);
        build_messages(0, 256);
        for (int i = 0; i < connections; i++) {
            fd = connect_and_shake_hands(port);
            write_all(fd, request, request_len);
            if (read_frame(fd, input, INPUT) != reply_len) die("reply");
            done_requests = 0;
            sent_requests = 1;
            check_head(input, REPLY_HEAD < reply_len ? REPLY_HEAD : reply_len);
        }
        printf("{\"connections\": %d}\n", connections);
        wait_for_end();
        return 0;
    }
    int rated = !strcmp(mode, "rate");
    if (argc != (rated ? 8 : 9)) { fprintf(stderr, "wrong number of arguments\n"); return 2; }
    together = !rated && !strcmp(argv[4], "together");
    build_messages(!rated && !strcmp(argv[4], "fetch"), (uint32_t)atol(argv[rated ? 4 : 5]));
    uint64_t warm_up = strtoull(argv[rated ? 5 : 7], NULL, 10), requests = strtoull(argv[rated ? 6 : 8], NULL, 10);
    fd = connect_and_shake_hands(port);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    int64_t interval_ns = rated ? 1000000000 / atol(argv[7]) : 0;
    uint64_t in_flight = rated ? 0 : strtoull(argv[6], NULL, 10);
    if (rated) run_rate(warm_up, interval_ns); else run_closed(warm_up, in_flight);
    wait_for_go();
    uint64_t sent_before = request_bytes, got_before = reply_bytes;
    if (rated) {
        measured_from = warm_up;
        intended_ns = must_alloc(requests * sizeof *intended_ns);
        latency_ns = must_alloc(requests * sizeof *latency_ns);
    }
    int64_t start = now_ns();
    if (rated) run_rate(warm_up + requests, interval_ns); else run_closed(warm_up + requests, in_flight);
    print_result(now_ns() - start, requests, sent_before, got_before);
    if (rated) {
        qsort(latency_ns, requests, sizeof *latency_ns, by_value);
        printf(", \"p50_ns\": %ld, \"p90_ns\": %ld, \"p99_ns\": %ld, \"p999_ns\": %ld", latency_ns[requests / 2],
               latency_ns[requests * 9 / 10], latency_ns[requests * 99 / 100], latency_ns[requests * 999 / 1000]);
    }
    printf("}\n");
    wait_for_end();
    return 0;
}
