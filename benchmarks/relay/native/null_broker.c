/* A broker that keeps nothing: answers just enough of the protocol, at next to no cost.
 *
 * Produce bodies are dropped in the kernel (MSG_TRUNC), Fetch bodies come from one prebuilt image.
 * The first frames of each connection are read in full and hashed, so that two paths can be shown to have
 * delivered the same bytes (produce_hash: the latest connection's). SIGUSR1 prints the counters as one JSON line.
 *
 * usage: null_broker PORT
 * Answers ApiVersions (any version), Metadata 0-13, DescribeCluster 0-2, DescribeConfigs 1-4, Produce 9-12,
 * Fetch 12; closes the connection on anything else.
 */
#include <signal.h>
#include <sys/signalfd.h>

#include "wire.h"

#define INPUT (256 * 1024)
#define OUTPUT (64 * 1024)
#define PRODUCE_HEAD 512         /* bytes of a Produce frame that are looked at */

struct conn {
    int fd, dead, verified;
    uint32_t armed;
    size_t skip;                 /* bytes of the current Produce frame still to come */
    int reply_due, together;     /* that frame wants an answer once it is whole; answers may share a write */
    int32_t correlation_id;
    uint8_t *carry;              /* the start of a frame whose head is not whole yet */
    size_t carry_len;
    uint8_t *held;               /* small replies the socket did not take */
    size_t held_at, held_len;
    uint8_t blob_head[8];        /* a Fetch reply under way: size and correlation id, then the image */
    const struct image *blob;
    size_t blob_at, blob_len;
};

/* A whole Fetch reply, shared by all connections that ask for this many record bytes. */
struct image {
    uint32_t records;
    size_t len;
    uint8_t *bytes;
    struct image *next;
};

static int poller, port;
static uint8_t input[INPUT], output[OUTPUT];
static size_t output_len;
static struct image *images;
static struct { uint64_t produces, produce_bytes, fetches, fetch_bytes, produce_hash, connections; } seen;

static void print_counters(void) {
    printf("{\"produce_requests\": %lu, \"produce_bytes\": %lu, \"fetch_requests\": %lu, \"fetch_bytes\": %lu, "
           "\"produce_hash\": %lu, \"connections\": %lu}\n",
           seen.produces, seen.produce_bytes, seen.fetches, seen.fetch_bytes, seen.produce_hash, seen.connections);
    fflush(stdout);
}

static void arm(struct conn *c) {
    uint32_t events = c->held || c->blob_len ? EPOLLOUT : EPOLLIN;
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (events == c->armed) return;
    if (epoll_ctl(poller, c->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl");
    c->armed = events;
}

/* ---- answers ---- */

static void api_versions(struct writer *w, int version) {
    static const int16_t apis[][3] = {
        {0, 0, 13}, {1, 4, 18}, {2, 1, 11}, {3, 0, 13}, {8, 2, 10}, {9, 1, 10}, {10, 0, 6}, {11, 2, 9}, {12, 0, 4},
        {13, 0, 5}, {14, 0, 5}, {15, 0, 6}, {16, 0, 5}, {17, 0, 1}, {18, 0, 4}, {19, 2, 7}, {20, 1, 6}, {22, 0, 6},
        {32, 1, 4}, {36, 0, 2}, {37, 0, 3}, {48, 0, 1}, {49, 0, 1}, {60, 0, 2},
    };
    int count = (int)(sizeof apis / sizeof apis[0]), known = version <= 4, flexible = known && version >= 3;
    put16(w, known ? 0 : 35);    /* UNSUPPORTED_VERSION is answered in version 0's shape */
    put_count(w, flexible, (uint32_t)count);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < 3; j++) put16(w, apis[i][j]);
        put_tags(w, flexible);
    }
    if (known && version >= 1) put32(w, 0);
    put_tags(w, flexible);
}

static void metadata(struct writer *w, int version) {
    int flexible = version >= 9;
    if (version >= 3) put32(w, 0);
    put_count(w, flexible, 1);
    put32(w, 1);
    put_text(w, flexible, "127.0.0.1");
    put32(w, port);
    if (version >= 1) put_null_text(w, flexible);
    put_tags(w, flexible);
    if (version >= 2) put_text(w, flexible, "relay-bench-cluster");
    if (version >= 1) put32(w, 1);
    put_count(w, flexible, 0);
    if (version >= 8 && version <= 10) put32(w, INT32_MIN);
    if (version >= 13) put16(w, 0);
    put_tags(w, flexible);
}

static void describe_cluster(struct writer *w, int version) {
    put32(w, 0);
    put16(w, 0);
    put8(w, 0);
    if (version >= 1) put8(w, 1);
    put_compact(w, "relay-bench-cluster");
    put32(w, 1);
    put_uvarint(w, 2);
    put32(w, 1);
    put_compact(w, "127.0.0.1");
    put32(w, port);
    put8(w, 0);
    if (version >= 2) put8(w, 0);
    put8(w, 0);
    put32(w, INT32_MIN);
    put8(w, 0);
}

/* One setting is enough for whoever asks what a topic without a partition count gets. */
static int describe_configs(struct writer *w, int version, const uint8_t *body, size_t have) {
    int flexible = version >= 4;
    size_t at = flexible ? 1 : 4, name_len;
    if (have < at + 3) return 0;
    int type = body[at++];
    if (flexible) {
        name_len = body[at] ? (size_t)body[at] - 1 : 0;
        at += 1;
    } else {
        name_len = (size_t)get16(body + at);
        at += 2;
    }
    if (name_len > 100 || at + name_len > have) return 0;
    char name[101];
    memcpy(name, body + at, name_len);
    name[name_len] = 0;
    put32(w, 0);
    put_count(w, flexible, 1);
    put16(w, 0);
    put_null_text(w, flexible);
    put8(w, type);
    put_text(w, flexible, name);
    put_count(w, flexible, 1);
    put_text(w, flexible, "num.partitions");
    put_text(w, flexible, "1");
    put8(w, 0);
    put8(w, 4);                  /* static broker configuration */
    put8(w, 0);
    put_count(w, flexible, 0);
    if (version >= 3) { put8(w, 3); put_null_text(w, flexible); }
    put_tags(w, flexible);
    put_tags(w, flexible);
    put_tags(w, flexible);
    return 1;
}

/* Writes a small reply into the output; 0 when this request is not one we answer. */
static int answer_control(const struct request_head *head, const uint8_t *frame, size_t frame_len) {
    int version = head->version;
    uint8_t *start = output + output_len;
    struct writer w = {start};
    put32(&w, 0);
    put32(&w, head->correlation_id);
    if (head->api_key != API_VERSIONS) put_tags(&w, is_flexible(head->api_key, head->version));
    if (head->api_key == API_VERSIONS) api_versions(&w, version);
    else if (head->api_key == METADATA && version >= 0 && version <= 13) metadata(&w, version);
    else if (head->api_key == DESCRIBE_CLUSTER && version <= 2) describe_cluster(&w, version);
    else if (head->api_key == DESCRIBE_CONFIGS && version >= 1 && version <= 4) {
        if (!describe_configs(&w, version, frame + head->body, frame_len - head->body)) return 0;
    } else return 0;
    output_len += finish_frame(start, &w);
    return 1;
}

static void start_fetch_reply(struct conn *c, int32_t correlation_id, uint32_t records) {
    struct image *image = images;
    while (image && image->records != records) image = image->next;
    if (!image) {
        image = must_alloc(sizeof *image);
        image->records = records;
        image->bytes = must_alloc(records + 256);
        image->len = build_fetch_reply(image->bytes, records);
        image->next = images;
        images = image;
    }
    memcpy(c->blob_head, image->bytes, 4);
    struct writer w = {c->blob_head + 4};
    put32(&w, correlation_id);
    c->blob_at = 0;
    c->blob = image;
    c->blob_len = image->len;
    seen.fetches++;
    seen.fetch_bytes += image->len;
}

/* ---- one connection ---- */

static int flush_output(struct conn *c) {
    if (!output_len) return 1;
    ssize_t sent = send(c->fd, output, output_len, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return 0;
    if (sent < 0) sent = 0;
    if ((size_t)sent < output_len) {
        c->held_len = output_len - (size_t)sent;
        c->held_at = 0;
        c->held = must_alloc(c->held_len);
        memcpy(c->held, output + sent, c->held_len);
    }
    output_len = 0;
    return 1;
}

/* Pushes what is owed; 0 when the connection is lost. */
static int push(struct conn *c) {
    if (c->held) {
        ssize_t sent = send(c->fd, c->held + c->held_at, c->held_len - c->held_at, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN;
        c->held_at += (size_t)sent;
        if (c->held_at < c->held_len) return 1;
        free(c->held);
        c->held = NULL;
    }
    while (c->blob_len) {
        struct iovec parts[2] = {{c->blob_head, 8}, {c->blob->bytes + 8, c->blob_len - 8}}, *first = parts;
        if (c->blob_at < 8) {
            parts[0].iov_base = c->blob_head + c->blob_at;
            parts[0].iov_len = 8 - c->blob_at;
        } else {
            first = parts + 1;
            parts[1].iov_base = c->blob->bytes + c->blob_at;
            parts[1].iov_len = c->blob_len - c->blob_at;
        }
        struct msghdr message = {.msg_iov = first, .msg_iovlen = first == parts ? 2 : 1};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN;
        c->blob_at += (size_t)sent;
        if (c->blob_at == c->blob_len) c->blob_len = 0;
    }
    return 1;
}

/* Each reply is a write of its own, as a real broker's are, unless the client asked for the contrary. */
static int produce_done(struct conn *c) {
    size_t throttle_at;
    if (c->verified < VERIFIED_FRAMES) c->verified++;
    if (!c->reply_due) return 1;
    output_len += build_produce_reply(output + output_len, c->correlation_id, &throttle_at);
    return (c->together && output_len < OUTPUT / 2) || flush_output(c);
}

/* Consumes whole heads from data; returns the bytes used, or -1 to close. Stops while a reply is stuck. */
static ssize_t parse(struct conn *c, const uint8_t *data, size_t len) {
    size_t at = 0;
    while (at < len && !c->held && !c->blob_len) {
        size_t have = len - at;
        if (c->skip) {
            size_t n = have < c->skip ? have : c->skip;
            if (c->verified < VERIFIED_FRAMES) seen.produce_hash = fnv1a(seen.produce_hash, data + at, n);
            c->skip -= n;
            at += n;
            if (!c->skip && !produce_done(c)) return -1;
        } else {
            const uint8_t *frame = data + at;
            struct request_head head;
            if (have < 14) break;
            size_t total = (size_t)(uint32_t)get32(frame) + 4, wanted = total;
            if (get16(frame + 4) == PRODUCE && wanted > PRODUCE_HEAD) wanted = PRODUCE_HEAD;
            if (wanted > INPUT / 2) return -1;
            if (have < wanted) break;
            if (!read_request_head(frame, wanted, &head)) return -1;
            if (head.api_key == PRODUCE) {
                const uint8_t *body = frame + head.body;
                if (head.version < 9 || head.version > 12) return -1;
                size_t acks_at = body[0] ? body[0] : 1;   /* past the transactional id, when there is one */
                if (head.body + acks_at + 6 > wanted) return -1;
                c->reply_due = get16(body + acks_at) != 0;
                c->together = get32(body + acks_at + 2) == TOGETHER_TIMEOUT_MS;
                c->correlation_id = head.correlation_id;
                seen.produces++;
                seen.produce_bytes += total;
                if (!c->verified) seen.produce_hash = FNV_START;
                if (c->verified < VERIFIED_FRAMES) seen.produce_hash = fnv1a(seen.produce_hash, frame + 12, wanted - 12);
                c->skip = total - wanted;
                at += wanted;
                if (!c->skip && !produce_done(c)) return -1;
            } else {
                if (head.api_key == FETCH && head.version == FETCH_VERSION) {
                    start_fetch_reply(c, head.correlation_id, (uint32_t)get32(frame + head.body + FETCH_MAX_BYTES_AT));
                    if (!push(c)) return -1;
                } else if (!answer_control(&head, frame, total) || !flush_output(c)) return -1;
                at += total;
            }
        }
    }
    return flush_output(c) ? (ssize_t)at : -1;
}

static int keep(struct conn *c, const uint8_t *data, size_t len) {
    uint8_t *old = c->carry;
    c->carry = NULL;
    c->carry_len = len;
    if (len) {
        c->carry = must_alloc(len);
        memcpy(c->carry, data, len);
    }
    free(old);
    return 1;
}

static int on_readable(struct conn *c) {
    for (;;) {
        ssize_t n;
        if (c->skip && c->verified >= VERIFIED_FRAMES) {
            n = recv(c->fd, NULL, c->skip, MSG_TRUNC);
            if (n < 0) return errno == EAGAIN;
            if (n == 0) return 0;
            c->skip -= (size_t)n;
            if (!c->skip) {
                if (!produce_done(c) || !flush_output(c)) return 0;
                if (c->held) return 1;
            }
            continue;
        }
        size_t before = c->carry_len;
        if (before) memcpy(input, c->carry, before);
        /* Reading little at a frame's start leaves more of a big body for the kernel to drop. */
        size_t room = c->skip ? INPUT - before : 32 * 1024;
        n = recv(c->fd, input + before, room, 0);
        if (n < 0) return errno == EAGAIN;
        if (n == 0) return 0;
        ssize_t used = parse(c, input, before + (size_t)n);
        if (used < 0) return 0;
        keep(c, input + used, before + (size_t)n - (size_t)used);
        if (c->held || c->blob_len || ((size_t)n < room && !c->skip)) return 1;
    }
}

static int on_writable(struct conn *c) {
    if (!push(c)) return 0;
    if (!c->held && !c->blob_len && c->carry_len) {
        size_t len = c->carry_len;
        memcpy(input, c->carry, len);
        ssize_t used = parse(c, input, len);
        if (used < 0) return 0;
        keep(c, input + used, len - (size_t)used);
    }
    return 1;
}

static void on_accept(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct conn *c = calloc(1, sizeof *c);
        if (!c) die("calloc");
        c->fd = fd;
        set_nodelay(fd);
        arm(c);
        seen.connections++;
    }
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) { fprintf(stderr, "usage: null_broker PORT [SEND_BUFFER_BYTES]\n"); return 2; }
    port = atoi(argv[1]);
    int buffer = argc == 3 ? atoi(argv[2]) : 0;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int listener = listen_on(port);
    if (buffer && setsockopt(listener, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer)) die("setsockopt");
    int asked = signalfd(-1, &signals, SFD_CLOEXEC);
    struct epoll_event ready[256], on_listener = {.events = EPOLLIN, .data.ptr = &listener},
                                   on_asked = {.events = EPOLLIN, .data.ptr = &asked};
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(poller, EPOLL_CTL_ADD, listener, &on_listener)) die("epoll_ctl");
    if (epoll_ctl(poller, EPOLL_CTL_ADD, asked, &on_asked)) die("epoll_ctl");
    for (;;) {
        int n = epoll_wait(poller, ready, 256, -1);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if (ready[i].data.ptr == &listener) { on_accept(listener); continue; }
            if (ready[i].data.ptr == &asked) {
                struct signalfd_siginfo info;
                if (read(asked, &info, sizeof info) == sizeof info) print_counters();
                continue;
            }
            int alive = ready[i].events & EPOLLOUT ? on_writable(c) : on_readable(c);
            if (alive) { arm(c); continue; }
            close(c->fd);
            free(c->carry);
            free(c->held);
            free(c);
        }
    }
}
